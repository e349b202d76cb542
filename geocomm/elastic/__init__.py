"""An elastic run: sites that die, leave and join while the others train on. No torch.

`geocomm run --elastic` starts a supervisor at each site, which keeps an agent and the ranks running; one of the agents
leads. What the sites agree on is in `journal`, without sockets and clocks. Begin with that, then with
`agent_process.py`, `site/agent.py` and `leading/leader.py`. `files` has what a site keeps on its disk.
"""
