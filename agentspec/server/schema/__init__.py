"""Requests of each API as pydantic models: what is checked, and what `/openapi.json` says."""
