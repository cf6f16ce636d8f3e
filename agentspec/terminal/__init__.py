"""The terminal program around agentspec.assistant.

::

    chat.Chat                 the loop of `agentspec chat`: a line, a turn, a line
    headless.run_once         one request without a terminal (`-p`)
    commands.Commands         what each slash command does
    prompt.Prompt             the line that the user types: history, completion, many lines
    ask.TerminalDecider       asks about changes and commands
    screen.Screen             shows what happens in a turn
    markdown.MarkdownStream   Markdown as it comes, word by word
    diff                      a change in colours
    speed                     how fast it was, in words
    waiting.Waiting           the line that says what is waited for
    interrupts.Interrupts     Ctrl-C while a model writes
    opening.Opening           a session that is being opened while the user types

Everything that is printed has passed `results.plain`: nothing that a model, a file or a command
says can steer the terminal.
"""
