"""Train what the notebooks share, with progress, before any of them is timed."""

import agentrl

if __name__ == "__main__":
    tok = agentrl.build_tokenizer(agentrl.make_tasks("all"))
    print("the RL base, three critics of it, and four agents (trained once, then read from the cache)")
    agentrl.make_rl_base(tok)
    agentrl.make_base_critic(tok)
    agentrl.make_base_critic(tok, n=80)
    agentrl.make_long_critic()
    agentrl.train_critic_arm("turn GAE")
    for seed in agentrl.SEEDS[:3]:
        agentrl.trained_policy("default", seed)
