"""Elastic runs simulated with faults: leader, agents and ranks over `geocomm.elastic.journal`, in virtual time."""
