"""Store a plan; each step gets its key now, from its run and number."""

from psycopg.types.json import Jsonb


def store(db, run, steps, first=1):
    """Add steps to the plan of this run: all, or none if a number is taken.

    A step is a tool and its arguments.  An argument {"step": 1} stands for the
    number on the receipt of step 1.
    """
    with db.transaction():
        for step, (tool, args) in enumerate(steps, first):
            db.execute(
                "INSERT INTO plan (run, step, key, tool, args)"
                " VALUES (%(run)s, %(step)s, idem_step_key(%(run)s, %(step)s),"
                " %(tool)s, %(args)s)",
                {"run": run, "step": step, "tool": tool, "args": Jsonb(args)})


def sale(customer, item, amount):
    """Three writes and a mail."""
    return [
        ("order", {"customer": customer, "item": item}),
        ("charge", {"order": {"step": 1}, "amount": amount}),
        ("ship", {"order": {"step": 1}, "charge": {"step": 2}}),
        ("mail", {"to": customer, "about": {"step": 3}}),
    ]
