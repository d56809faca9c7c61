"""Every page of the console over the sessions of the story, by a name for its picture."""

PAGES = {
    "sessions": "/",
    "failures": "/?status=failed",
    "session": "/session?id=order-8847",
    "failing-step": "/session?id=order-8847&step=5",
    "changes": "/session?id=trip-42&step=3&view=changes",
    "state": "/session?id=trip-42&branch=by-train&view=state",
    "request": "/session?id=order-8847&step=4&view=request",
    "effects": "/session?id=refund-8847&view=effects",
    "branch": "/session/branch?id=order-8847&step=5&before=1",
    "compare": "/compare?id=trip-42&a=main&b=by-train",
    "approvals": "/approvals",
    "in-doubt": "/in-doubt",
    "fleet": "/fleet",
    "store": "/store",
    "no-match": "/?q=nothing-is-called-this",
}
