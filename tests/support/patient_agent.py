"""An agent that would wait for its ranks' last steps without end: `python -m support.patient_agent CONFIG`."""

from __future__ import annotations

from geocomm.elastic import agent_process

if __name__ == "__main__":
    agent_process.LAST_STEPS_S = 1e6
    agent_process.main()
