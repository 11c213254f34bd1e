"""Train the runs behind the book's tables that are missing or were made by other code, and store them.

    python -m tools.runs

A run that is stored in figures/data and whose version fits is not trained again; an interrupted call
goes on where it was.
"""

import agentrl

if __name__ == "__main__":
    heldout, _ = agentrl.arm_results(list(agentrl.ARMS), agentrl.SEEDS)
    print(f"{len(heldout)} runs of {heldout['arm'].nunique()} arms are stored in figures/data")
