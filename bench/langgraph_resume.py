"""LangGraph's side of the cold-resume benchmark. Runs in .venv-peers, where perdure is not installed.

    build  DB MESSAGES.json   put the messages into a thread, ten per checkpoint
    resume DB                 import, compile the graph, open the saver, get the state, touch every message
    saver  DB                 the same without a graph: only the saver's newest checkpoint

Messages are plain dicts under a reducer that concatenates: cheaper for LangGraph than its own message classes.
"""

import operator
import sqlite3
import sys
from typing import Annotated, Any, TypedDict

CONFIG: Any = {"configurable": {"thread_id": "trip-42", "checkpoint_ns": ""}}


def compiled(saver: Any) -> Any:
    """The smallest graph that keeps messages."""
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        messages: Annotated[list, operator.add]

    graph = StateGraph(State)
    graph.add_node("agent", lambda state: {})
    graph.add_edge(START, "agent")
    graph.add_edge("agent", END)
    return graph.compile(checkpointer=saver)


def main(action: str, path: str, *more: str) -> None:
    """Do one of the three."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    if action == "build":
        import json
        from pathlib import Path

        messages = json.loads(Path(more[0]).read_text(encoding="utf-8"))
        connection.execute("pragma synchronous = off")
        graph = compiled(saver)
        for start in range(0, len(messages), 10):
            graph.update_state(CONFIG, {"messages": messages[start : start + 10]}, as_node="agent")
        connection.close()
        return
    if action == "resume":
        found = compiled(saver).get_state(CONFIG).values["messages"]
    else:
        newest = saver.get_tuple(CONFIG)
        assert newest is not None
        found = newest.checkpoint["channel_values"]["messages"]
    print(len(found), sum(len(message["content"]) for message in found))


if __name__ == "__main__":
    main(*sys.argv[1:])
