"""Pays each invoice once, however often this program is killed. Run it, kill -9 it, run it again."""

import perdure


@perdure.tool(if_unsure="retry")  # started, outcome unknown: call again, with the same effect id
def pay(invoice: str, amount: int, ctx: perdure.Context) -> str:
    return f"paid {amount} for {invoice}"  # a real provider gets ctx.effect_id as its idempotency key


def work(s: perdure.Session) -> str:
    for invoice, amount in [("A-1", 120), ("A-2", 80), ("A-3", 310)]:
        receipt = s.call(pay, invoice, amount)  # written down before it is made, and never made twice
        s.messages.append({"role": "assistant", "content": receipt})
        s.commit()  # durable when it returns
    return f"{len(s.messages)} invoices paid"


with perdure.open("sqlite:///agents.db") as db, db.session("invoices-7", owner="ana") as s:
    print(s.opened, "at step", s.step)  # created, or resumed wherever the last process was stopped
    print(s.run("july", work))  # a finished run returns its recorded result
    print(db.read("invoices-7", at=4).messages)  # any moment of the past, without a lease
