"""Programs that use agentspec, each runnable as it lies here."""
