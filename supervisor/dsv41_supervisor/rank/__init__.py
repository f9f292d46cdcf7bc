"""Stage 5 of 7: pack → RANK → engine. Takes the reports before it, gives a LaunchPlan and then a process."""
