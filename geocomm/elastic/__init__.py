"""An elastic run: sites that die, leave and join while the others train on. No torch.

`geocomm run --elastic` starts a supervisor at each site, which keeps an agent and the ranks running; one of the agents
leads. Begin with `agent_process.py`, then `agent.py` and `leader.py`.
"""
