"""asyncpg"""

import asyncio
import datetime
import json
import os

import asyncpg

from facts import observer, row

NAME = "asyncpg"
print("#", NAME, asyncpg.__version__)


async def outcome(call):
    try:
        return await call
    except asyncio.TimeoutError:
        return "TimeoutError"
    except asyncpg.PostgresError as error:
        # one that the driver has made itself has no severity
        return error.sqlstate if error.severity else "the driver refuses"


async def reserve(db, key, ttl=None, **more):
    named = "".join(f", {name} => ${n}" for n, name in enumerate(more, 3))
    return await db.fetchval(f"SELECT status FROM idem_reserve($1, $2{named})",
                             key, ttl, *more.values())


async def lease(db, key, ttl):
    answer = await outcome(reserve(db, key, ttl))
    if answer == "reserved":
        return observer.lease(key)
    assert observer.committed(key) == "not committed"
    return answer


async def complete(db, key, value):
    token = observer.token(key)
    said = await outcome(
        db.fetchval("SELECT idem_complete($1, $2, $3)", key, value, token))
    return observer.recorded(key) if said is True else said


async def main():
    db = await asyncpg.connect(host=os.environ["PGHOST"])
    await reserve(db, "apg:plain")
    seen = observer.committed("apg:plain")
    alone = await outcome(reserve(db, "apg:two", two_phase=True))

    async def in_transaction():
        async with db.transaction():
            return await reserve(db, "apg:block", two_phase=True)

    row("transactions", NAME, seen, alone, await outcome(in_transaction()),
        "nothing to do")

    raw = [await complete(db, "apg:object", {"a": 1}),
           await complete(db, "apg:array", [1, 2]),
           await complete(db, "apg:string", "ok")]
    assert await complete(db, "apg:ok", json.dumps({"a": 1})) == '`{"a": 1}`'
    nul = await complete(db, "apg:nul", json.dumps("a\0b"))
    back = await db.fetchval("SELECT result FROM idem_reserve('apg:ok')")
    row("jsonb", NAME, *raw, nul, type(back).__name__, "`json.dumps(value)`")

    token = await db.fetchval("SELECT token FROM idem_reserve('apg:token')")
    nothing = await outcome(db.fetchval(
        "SELECT idem_complete('apg:token', NULL, $1)", None))
    row("times", NAME, "timedelta",
        await lease(db, "apg:5min", datetime.timedelta(minutes=5)),
        await lease(db, "apg:300", 300), await lease(db, "apg:text", "5 min"),
        type(token).__name__, nothing)

    # the driver sends a cancel request, from its event loop
    rival = observer.rival("apg:late")
    said = await outcome(db.fetchval(
        "SELECT status FROM idem_reserve('apg:late', wait => '1 min')",
        timeout=0.2))
    await asyncio.to_thread(observer.wait_for_calls, 0)
    rival.rollback()
    row("time-outs", NAME, "`timeout=`", said, observer.committed("apg:late"))


asyncio.run(main())
