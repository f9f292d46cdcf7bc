"""`settings.engine.container` on a declared machine: units against readable files, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from nix_runner import HERE, REPOSITORY, Nix
from test_eval_rendered import masked, write
from test_eval_units import analyze, here  # noqa: F401

GOLDEN = HERE / "golden-container"
TRIANGLE = REPOSITORY / "tests/fleets/triangle-3.nix"
IMAGE = "registry.example.org/dsv41/engine@sha256:" + "0123456789abcdef" * 4
IN_CONTAINER = f'set.engine.container.image = "{IMAGE}";'
# The rank's own process is root, and what it may do is what podman needs; see modules/container.nix.
CEILINGS = {"dsv41-container.service": 6.5, "dsv41-rank@.service": 7.0}
FILES = ("dsv41-rank@.service", "dsv41-container.service", "polkit.rules", "tmpfiles.conf")


def system(change: str) -> str:
    return f"""
      (let change = {{ machine = {{ }}; set = {{ }}; }} // {{ {change} }}; in lib.nixosSystem {{
        modules = [
          flake.nixosModules.default machine {TRIANGLE} change.machine
          {{ networking.hostName = "spark1"; services.dsv41.settings = change.set; }}
        ];
      }}).config
    """


@pytest.fixture(scope="module")
def rendered(nix: Nix) -> dict[str, str]:
    files = nix.value(f"""
      let c = {system(IN_CONTAINER)}; in builtins.mapAttrs (_: unit: unit.text) c.systemd.units // {{
        "tmpfiles.conf" = lib.concatMapStringsSep "" (rule: rule + "\\n") c.systemd.tmpfiles.rules;
        "polkit.rules" = c.security.polkit.extraConfig;
      }}""")
    return {name: masked(files[name]) for name in FILES}


def test_a_machine_with_an_image_is_rendered_as_in_the_golden_files(rendered: dict[str, str]) -> None:
    if os.environ.get("DSV41_UPDATE_GOLDEN") == "1":
        write(GOLDEN, rendered)
    assert rendered == {path.name: path.read_text() for path in sorted(GOLDEN.iterdir())}


def test_the_rank_is_watched_and_stopped_as_without_an_image(rendered: dict[str, str]) -> None:
    """The engine is in the unit's own cgroup: its limits, score and kills are the engine's."""
    bare = (HERE / "golden/triangle-3-spark1/dsv41-rank@.service").read_text().splitlines()
    unit = rendered["dsv41-rank@.service"].splitlines()
    for key in ("Type", "NotifyAccess", "Restart", "KillMode", "TimeoutStopSec", "WatchdogSec", "OOMScoreAdjust",
                "LimitMEMLOCK", "LimitNOFILE", "NoNewPrivileges", "ProtectControlGroups", "ProtectSystem",
                "X-RestartIfChanged"):  # fmt: skip
        kept = [line for line in unit if line.startswith(f"{key}=")]
        assert kept and kept == [line for line in bare if line.startswith(f"{key}=")], key
    assert not [line for line in unit if line.startswith(("Delegate=", "CacheDirectory=", "PrivateDevices=yes"))]
    look = rendered["dsv41-container.service"]
    assert re.search(r'ExecStart="\S+/bin/dsv41" "container" --remove --to /run/dsv41-container/look.json "--s', look)


def test_podman_and_the_gpus_device_come_with_it_and_without_it_neither(nix: Nix) -> None:
    wanted = "{ podman = c.virtualisation.podman.enable; cdi = c.hardware.nvidia-container-toolkit.enable; " \
        "python = c.services.dsv41.settings.engine.python; unit = c.systemd.services ? dsv41-container; }"  # fmt: skip
    assert nix.value(f"let c = {system(IN_CONTAINER)}; in {wanted}") == {
        "podman": True, "cdi": True, "python": None, "unit": True,
    }  # fmt: skip
    bare = nix.value(f"let c = {system('')}; in {wanted}")
    assert (bare["podman"], bare["cdi"], bare["unit"]) == (False, False, False)
    assert bare["python"].endswith("/bin/python3")


def test_the_system_of_such_a_machine_evaluates(nix: Nix) -> None:
    assert nix.value(f"({system(IN_CONTAINER)}).system.build.toplevel.drvPath").endswith(".drv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            'set.engine.container.image = "registry.example.org/dsv41/engine:0.5.23";',
            "services.dsv41.settings.engine.container.image is registry.example.org/dsv41/engine:0.5.23, which names "
            "no digest: a tag moves, and all ranks run the same bits or none. Run podman pull "
            "registry.example.org/dsv41/engine:0.5.23, then podman image inspect --format '{{.RepoDigests}}' "
            "registry.example.org/dsv41/engine:0.5.23, and set it to what that prints.",
        ),
        (
            f'set.engine = {{ container.image = "{IMAGE}"; python = "/opt/engine/bin/python3"; }};',
            "engine.python and engine.container are both set, and a rank runs one of them. Take one out.",
        ),
        (
            "machine.services.dsv41.enginePackage = null;",
            "engine.python is null, and so is engine.container. Set services.dsv41.enginePackage, or "
            "engine.container.image to an image by digest.",
        ),
        (
            f'set.engine.container = {{ image = "{IMAGE}"; gpu = "all"; }};',
            "A definition for option `services.dsv41.settings.engine.container.gpu' is not of type",
        ),
        (
            f'set.engine.container = {{ image = "{IMAGE}"; priviledged = true; }};',
            "The option `services.dsv41.settings.engine.container.priviledged' does not exist.",
        ),
        (
            "set.engine.container = { };",
            "services.dsv41.settings.engine.container.image",
        ),
    ],
)
def test_nixos_rebuild_refuses(nix: Nix, change: str, message: str) -> None:
    said = nix.refusal(f"({system(change)}).system.build.toplevel.drvPath")
    assert message in " ".join(said.split())


@pytest.mark.parametrize("name", CEILINGS)
def test_systemd_has_nothing_to_say_and_scores_are_as_they_were(
    analyze: str,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    unit = tmp_path / name.replace("@.", "@0.")
    unit.write_text(here((GOLDEN / name).read_text()))
    environment = {"SYSTEMD_UNIT_PATH": f"{tmp_path}:/lib/systemd/system", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stderr == ""
    done = subprocess.run(
        [analyze, "security", "--offline=yes", "--no-pager", str(unit)], capture_output=True, text=True, timeout=60,
        env=environment,
    )  # fmt: skip
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= CEILINGS[name]
