"""Train what the notebooks share, with progress, before any of them is timed."""

import agentrl

if __name__ == "__main__":
    print("the RL base (trained once, then read from the cache)")
    agentrl.make_rl_base(agentrl.build_tokenizer(agentrl.make_tasks("all")))
