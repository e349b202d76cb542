"""Elastic runs simulated with faults: leader, agents and ranks over the logic of `geocomm.journal`, in virtual time."""
