"""A small coding agent: it reads, repairs and tests a repository through five tools."""
