"""What a worker of the demo serves: ``perdure worker perdure.demo.app``.

A worker knows from its environment which shop it works for, how fast the model is, and what its agent is called.
"""

from __future__ import annotations

import os

from perdure.demo.desk import FACTOR, NAME, SHOP, desk
from perdure.demo.shop import Shop

# Outside of a worker nobody says which shop is meant, and there is no agent.
agent = (
    desk(Shop(os.environ[SHOP]), factor=float(os.environ.get(FACTOR, "1")), name=os.environ.get(NAME, "support"))
    if SHOP in os.environ
    else None
)
