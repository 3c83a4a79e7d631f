#!/usr/bin/python3
"""Charge an invoice: charge.py PORT INVOICE AMOUNT

PORT is the provider's; PGHOST and friends say where the database is.
"""

import asyncio
import contextlib
import sys

import psycopg

import client
from run_once import RunOnce, with_retries


@contextlib.asynccontextmanager
async def connection():
    async with await psycopg.AsyncConnection.connect() as db:
        yield db


async def charge(once, port, invoice, amount):
    request = {"invoice": invoice, "amount": amount}

    async def action(provider_key):
        # a thread, since this client blocks; aiohttp and httpx need none
        return await asyncio.to_thread(client.post, port, "charges", request,
                                       provider_key)

    return await with_retries(
        lambda: once.run("charge", invoice, request, action))


async def main():
    port, invoice, amount = sys.argv[1:]
    once = RunOnce(connection, waiters=4)
    print(await charge(once, int(port), invoice, int(amount)))


if __name__ == "__main__":
    asyncio.run(main())
