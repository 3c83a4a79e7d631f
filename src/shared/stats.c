/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters per database, in shared memory, and the view idem_stats.
 *
 * Callers add to atomics that they share with an eighth of their database's
 * sessions, which costs no lock and, on a cache line that hardly anybody else
 * writes, next to nothing.  A session finds its counters once.
 *
 *-------------------------------------------------------------------------
 */
#include "shared/idem_shared.h"

#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/acl.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(idem_stats_read);

pg_atomic_uint64 *idem_counts = NULL;

/* This session's database; NULL if not looked for yet, or if all are taken */
static IdemDatabase *my_database = NULL;
static bool attached = false;

static IdemDatabase *
find_database(Oid oid)
{
	for (int i = 0; i < IDEM_STATS_DATABASES; i++)
	{
		if (idem_shared->databases[i].oid == oid)
			return &idem_shared->databases[i];
	}
	return NULL;
}

/* Find this session's counters.  False if it has none. */
bool
idem_stats_attach(void)
{
	if (attached || idem_shared == NULL)
		return false;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	my_database = find_database(MyDatabaseId);
	if (my_database == NULL)
		my_database = find_database(InvalidOid);
	if (my_database && !OidIsValid(my_database->oid))
	{
		my_database->since = GetCurrentTimestamp();
		my_database->hand.page = InvalidBlockNumber;
		my_database->oid = MyDatabaseId;
	}
	LWLockRelease(idem_shared->lock);

	attached = true;
	if (my_database == NULL)
		return false;
	idem_counts = my_database->stripes[MyProcPid % IDEM_STRIPES].counts;
	return true;
}

/*
 * Add what a round did, and leave word of where it was.  One that never got
 * the table is none: whoever looks at last_round wants to hear of that.
 */
void
idem_stats_round(IdemRound *round, TimestampTz start, int64 duration)
{
	IdemDatabase *database;

	if (round->end != IDEM_ROUND_DONE && round->pages == 0)
		return;
	(void) idem_stats_attach();
	database = my_database;
	if (database == NULL)
		return;

	SpinLockAcquire(&database->mutex);
	database->expired += round->expired;
	database->deleted += round->deleted;
	database->forgotten += round->forgotten;
	database->refused += round->refused;
	database->table_pages = round->table_pages;
	if (!round->whole)
	{
		database->rounds++;
		database->last_round = start;
		database->duration = duration;
		database->hand = round->hand;
	}
	SpinLockRelease(&database->mutex);
}

/*
 * The database is gone: its counters are for another one.  Nobody can be
 * connected to it.
 */
void
idem_stats_forget(Oid oid)
{
	IdemDatabase *database;

	if (idem_shared == NULL)
		return;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	database = find_database(oid);
	if (database)
	{
		database->rounds = database->expired = database->deleted = 0;
		database->forgotten = database->refused = 0;
		database->last_round = 0;
		database->duration = 0;
		database->table_pages = 0;
		memset(&database->hand, 0, sizeof(IdemHand));
		for (int i = 0; i < IDEM_STRIPES; i++)
		{
			for (int j = 0; j < IDEM_COUNTS; j++)
				pg_atomic_write_u64(&database->stripes[i].counts[j], 0);
		}
		database->oid = InvalidOid;
	}
	LWLockRelease(idem_shared->lock);
}

static Datum
usecs_interval(int64 usecs)
{
	Interval   *span = palloc0(sizeof(Interval));

	span->time = usecs;
	return IntervalPGetDatum(span);
}

/* Add a database's line to the result */
static void
put_database(ReturnSetInfo *rsinfo, IdemDatabase *shared)
{
	IdemDatabase copy;
	Datum		values[IDEM_COUNTS + 13];
	bool		nulls[IDEM_COUNTS + 13] = {0};
	int			n = 0;

	SpinLockAcquire(&shared->mutex);
	memcpy(&copy, shared, offsetof(IdemDatabase, stripes));
	SpinLockRelease(&shared->mutex);

	values[n++] = ObjectIdGetDatum(copy.oid);
	for (int i = 0; i < IDEM_COUNTS; i++)
	{
		uint64		sum = 0;

		for (int j = 0; j < IDEM_STRIPES; j++)
			sum += pg_atomic_read_u64(&shared->stripes[j].counts[i]);
		values[n++] = Int64GetDatum((int64) sum);
	}
	values[n++] = Int64GetDatum(copy.expired);
	values[n++] = Int64GetDatum(copy.deleted);
	values[n++] = Int64GetDatum(copy.forgotten);
	values[n++] = Int64GetDatum(copy.refused);
	values[n++] = Int64GetDatum(copy.rounds);
	nulls[n] = nulls[n + 1] = copy.rounds == 0;
	values[n++] = TimestampTzGetDatum(copy.last_round);
	values[n++] = usecs_interval(copy.duration);
	nulls[n] = copy.rounds == 0 || copy.hand.page == InvalidBlockNumber;
	values[n++] = Int64GetDatum(copy.hand.page);
	values[n++] = Int64GetDatum(copy.table_pages);
	nulls[n] = copy.hand.revolution == 0;
	values[n++] = usecs_interval(copy.hand.revolution);
	nulls[n] = copy.hand.started == 0;
	values[n++] = Int64GetDatum(copy.hand.last_ownerless);
	values[n++] = TimestampTzGetDatum(copy.since);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* What happens in a database is not for everybody in another one to know */
static bool
may_see(Oid database)
{
	return OidIsValid(database) &&
		(database == MyDatabaseId ||
		 has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS));
}

/*
 * idem_stats_read() → a row for each database that has been counted, as far as
 * the caller may see it; none if the library is not preloaded
 */
Datum
idem_stats_read(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	if (idem_shared == NULL)
		return (Datum) 0;
	LWLockAcquire(idem_shared->lock, LW_SHARED);
	for (int i = 0; i < IDEM_STATS_DATABASES; i++)
	{
		if (may_see(idem_shared->databases[i].oid))
			put_database((ReturnSetInfo *) fcinfo->resultinfo,
						 &idem_shared->databases[i]);
	}
	LWLockRelease(idem_shared->lock);
	return (Datum) 0;
}
