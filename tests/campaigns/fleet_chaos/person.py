"""The person who agrees to refunds after a while, until stdin ends.

``python -m tests.campaigns.fleet_chaos.person URL SEED``
"""

from __future__ import annotations

import random
import select
import sys
import time

import perdure
from perdure.cli.session_at import open_matters, open_place
from perdure.errors import ApprovalError, PerdureError, StoreError


def main(url: str, seed: int) -> None:
    """Agree to everything that has waited for a moment, whatever the store does, until nobody needs us any more."""
    dice = random.Random(seed)
    with perdure.open(url, maintain=False) as db:
        seen: dict[str, float] = {}
        while not select.select([0], [], [], 0.2)[0]:
            try:
                _look(db, seen, dice)
            except StoreError as e:
                print(f"the person waits: {e}", file=sys.stderr, flush=True)


def _look(db: perdure.Database, seen: dict[str, float], dice: random.Random) -> None:
    for row in db.sessions(status="waiting_approval", limit=200):
        for request in open_matters(db, open_place(db, f"{row.id}@")).approvals:
            ripe = seen.setdefault(request["id"], time.monotonic() + dice.uniform(0.3, 2.0))
            if time.monotonic() >= ripe:
                try:
                    db.approve(row.id, request["id"], by="the person")
                except ApprovalError:
                    # Decided already: the answer to our first try was lost.
                    continue
                except StoreError:
                    raise
                except PerdureError as e:
                    print(f"cannot decide {row.id}: {e}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
