"""Why a session stands where it stands, and what to do next: one answer for lists, pages, command line, API and
metrics.

Read ``decision`` first: :func:`decision.told` decides, from facts that ``reading`` has gathered. ``facts`` is what
is known, ``answer`` what is said, ``to_do`` who could go on, ``lists`` the few words for many sessions at once. What it
says to do is typed: an :class:`perdure.session.actions.Action` knows its command, its HTTP call and its library call.
"""
