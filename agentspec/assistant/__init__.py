"""A coding assistant in a repository, without the terminal around it.

::

    open.open_session        puts a session together: what below is wired as `agentspec chat` has it
    turn.Conversation        messages; `turn(text, stop=…)` yields events until the model is done
    events                   what happens in a turn, for whoever shows it
    decide                   Decider (asks the user), Gate (the user's rules), Change and Command
    change.Change            a change of one file: contents before and after, the diff
    changes.Journal          undo and redo by turn, byte for byte, after any crash
    tools.Toolbox            what the model may call; proposing has no effect
    held.HeldFiles           files that the user added, to be edited or only to be read
    repository.Repository    the files below a root, and no way out of it
    repo_map.RepoMap         the definitions that matter most, within a budget of tokens
    session_log              conversations on disk: list, continue, resume, export
    compaction.Compactor     a history that fits
    model                    Model; engine_model (in process), http_model (any compatible server)
    mentions, slash          `@file` and `/command` in what the user types
    git.Git                  diff and commit without running what the repository brings

Text from models, files and commands holds whatever it holds: `results.plain` makes it fit for a
terminal.
"""
