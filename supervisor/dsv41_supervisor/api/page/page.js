"use strict";
// Asks /status every two seconds with the key that was typed in. Everything shown is set as text, never as markup.
const PERIOD_MS = 2000;
const KEY = "dsv41-key";
const at = (id) => document.getElementById(id);
const GOOD = new Set(["serving", "ready", "up"]);
const BAD = new Set(["failed", "unreachable", "down", "missing", "recovering", "stopped"]);
const kind = (word) => (GOOD.has(word) ? "good" : BAD.has(word) ? "bad" : "mid");
let timer = 0;

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fixed(value, unit, digits) {
  return typeof value === "number" ? (value / unit).toFixed(digits) : "";
}

// The reason for everything that is not green, in words, each once.
function reasons(status) {
  const found = [];
  if (status.paused_by) found.push(`recovery is paused by ${status.paused_by}; dsv41 resume ends that`);
  if (status.reason) found.push(status.reason);
  for (const trouble of [status.unwritten, status.set_aside]) if (trouble) found.push(trouble);
  if (status.gateway && status.gateway.trouble) found.push(`the gateway at ${status.gateway.where} ${status.gateway.trouble}`);
  for (const r of status.refusals || []) found.push(`${r.node ? r.node + ", " : ""}${r.stage}: ${r.what} ${r.hint}`);
  for (const [name, node] of Object.entries(status.nodes)) {
    if (!node.rank) {
      found.push(`${name}: its supervisor has not answered for ${node.unreachable_s} s` + (node.trouble ? `: ${node.trouble}` : ""));
      continue;
    }
    if (node.rank.reason && node.rank.state !== "ready") found.push(`${name}: rank ${node.rank_number} ${node.rank.sentence}`);
    for (const [rail, r] of Object.entries(node.rails || {})) {
      if (r.state !== "up") found.push(`${name}: rail ${rail} (${r.interface}) is ${r.state}`);
    }
    for (const warning of node.warnings || []) found.push(`${name}: ${warning}`);
  }
  return [...new Set(found)];
}

function row(name, node) {
  const made = document.createElement("tr");
  const cell = (text, className) => made.append(element("td", text, className));
  const measured = node.measured || {};
  if (!node.rank) {
    cell("");
    cell(name);
    cell("unreachable", "bad");
    for (let i = 0; i < 7; i++) cell("");
    return made;
  }
  cell(String(node.rank_number));
  cell(name);
  cell(node.rank.state === "ready" ? "ready" : node.rank.sentence, kind(node.rank.state));
  const rails = document.createElement("td");
  for (const [rail, r] of Object.entries(node.rails || {})) rails.append(element("span", `${rail} ${r.state} `, kind(r.state)));
  made.append(rails);
  cell(Object.entries(node.rank.armed || {}).map(([adapter, state]) => `${adapter} ${state}`).join(", ") || "none asked for");
  cell(fixed(measured.rank_rss_bytes, 1e9, 2), "n");
  cell(fixed(measured.memory_available_bytes, 2 ** 30, 1), "n");
  cell(fixed((node.memory || {}).low_water_bytes, 2 ** 30, 1), "n");
  cell(fixed(node.supervisor.rss_bytes, 1e6, 0), "n");
  cell(fixed(node.lease_left_s, 1, 0), "n");
  return made;
}

function show(status) {
  const state = status.state || "this node only; the head is " + status.head;
  at("fleet").textContent = status.fleet ? `fleet ${status.fleet}` : "dsv41";
  at("state").textContent = state;
  at("state").className = `state ${kind(state)}`;
  const engine = Object.values(status.nodes).map((node) => node.engine).find(Boolean);
  at("rate").textContent = engine
    ? `${engine.tokens_per_s.toFixed(1)} tokens/s, ${engine.n_running} requests running, ${engine.n_queued} waiting`
    : "";
  const why = reasons(status);
  at("why").hidden = why.length === 0;
  at("reasons").replaceChildren(...why.map((text) => element("li", text)));
  at("nodes").replaceChildren(...Object.entries(status.nodes).map(([name, node]) => row(name, node)));
  const entries = (status.timeline || []).slice(-20).reverse();
  at("timeline").replaceChildren(
    ...entries.map((e) => element("li", `${new Date(e.at * 1000).toLocaleTimeString()}  ${e.what}`)));
  at("ask").hidden = true;
  at("shown").hidden = false;
  at("asked").textContent = `as of ${new Date().toLocaleTimeString()}`;
}

function silent(text) {
  at("state").textContent = text;
  at("state").className = "state bad";
}

function askForKey(text) {
  sessionStorage.removeItem(KEY);
  at("shown").hidden = true;
  at("ask").hidden = false;
  if (text) silent(text);
  at("key").focus();
}

async function look() {
  clearTimeout(timer);
  const key = sessionStorage.getItem(KEY);
  if (!key) return askForKey("");
  try {
    const answer = await fetch("status", {
      headers: { Authorization: `Bearer ${key}` }, cache: "no-store", credentials: "omit",
      signal: AbortSignal.timeout(10000),
    });
    if (answer.status === 401) return askForKey("wrong fleet key");
    const said = await answer.json();
    if (answer.ok) show(said);
    else silent(said.error.message);
  } catch (error) {
    silent(`this supervisor does not answer (${error.message})`);
  }
  timer = setTimeout(look, PERIOD_MS);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value.trim());
  at("key").value = "";
  look();
});
at("forget").addEventListener("click", () => {
  clearTimeout(timer);
  askForKey("");
});
look();
