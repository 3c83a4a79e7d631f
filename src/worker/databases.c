/*-------------------------------------------------------------------------
 *
 * databases.c
 *	  What the launcher knows of each database: when it is due, and where the
 *	  clock's hand is in it.
 *
 *	due -> worker runs -> done ............ due again after naptime, or soon
 *											if time did not suffice
 *						-> locked ......... due again soon (IDEM_LOCKED_NAP)
 *						-> nothing to do .. due again later (IDEM_LONG_NAP)
 *						-> died ........... due again later each time
 *
 * A database with nothing to do has no idem_tool, or it is switched off there.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/idem_worker.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "storage/lmgr.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "shared/idem_shared.h"

/* Between two rounds while there is more to do than one can */
#define IDEM_SHORT_NAP		(USECS_PER_SEC / 10)

/* When a locked table is tried again: most are not locked for long */
#define IDEM_LOCKED_NAP		USECS_PER_SEC

/* When a database that had nothing to do is looked at again */
#define IDEM_LONG_NAP		(60 * USECS_PER_SEC)

/* The longest wait after workers that died one after the other */
#define IDEM_LONGEST_NAP	(300 * USECS_PER_SEC)

/* pg_database.datconnlimit of one whose DROP was interrupted */
#define IDEM_CONNLIMIT_INVALID	(-2)

static HTAB *databases = NULL;

static void
create_databases(void)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(IdemDatabaseState);
	databases = hash_create("idem_tool databases", 64, &ctl,
							HASH_ELEM | HASH_BLOBS);
}

static void
note_database(Form_pg_database form)
{
	IdemDatabaseState *state;
	bool		found;

	if (form->datistemplate || !form->datallowconn ||
		form->datconnlimit == IDEM_CONNLIMIT_INVALID)
		return;

	state = hash_search(databases, &form->oid, HASH_ENTER, &found);
	if (!found)
	{
		memset((char *) state + sizeof(Oid), 0,
			   sizeof(IdemDatabaseState) - sizeof(Oid));
		state->hand.page = InvalidBlockNumber;
	}
	state->name = form->datname;
	state->listed = true;
}

/* Forget databases that are not in the list, and what was counted of them */
static void
forget_databases(void)
{
	HASH_SEQ_STATUS seq;
	IdemDatabaseState *state;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
	{
		if (!state->listed)
			(void) hash_search(databases, &state->oid, HASH_REMOVE, NULL);
	}

	for (int i = 0; idem_shared && i < IDEM_STATS_DATABASES; i++)
	{
		Oid			oid = idem_shared->databases[i].oid;

		if (OidIsValid(oid) &&
			!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(oid)))
			idem_stats_forget(oid);
	}
}

/*
 * Read pg_database, as autovacuum's launcher does.
 */
void
idem_databases_list(void)
{
	HASH_SEQ_STATUS seq;
	IdemDatabaseState *state;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	if (databases == NULL)
		create_databases();
	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
		state->listed = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
		note_database((Form_pg_database) GETSTRUCT(tuple));
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	forget_databases();
	CommitTransactionCommand();
}

/*
 * Is it there, and can a worker connect at once?  While the database is being
 * dropped, renamed or copied it could only wait, and the others with it.
 */
bool
idem_database_accessible(Oid database)
{
	LOCKTAG		tag;
	bool		accessible;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	accessible = LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
	if (accessible)
	{
		AcceptInvalidationMessages();
		accessible = SearchSysCacheExists1(DATABASEOID,
										   ObjectIdGetDatum(database));
	}
	CommitTransactionCommand();
	return accessible;
}

/* The round is over: when is the next one? */
void
idem_database_schedule(IdemDatabaseState *state, IdemRound *round)
{
	int64		naptime = (int64) idem_naptime * 1000;
	int64		wait = naptime;

	switch (round->end)
	{
		case IDEM_ROUND_DIED:
			state->failures = Min(state->failures + 1, 20);
			wait = Min(Max(naptime, USECS_PER_SEC) << state->failures,
					   IDEM_LONGEST_NAP);

			/* whatever it was that killed it may be somewhere in the table */
			state->hand.page = InvalidBlockNumber;
			break;
		case IDEM_ROUND_ABSENT:
		case IDEM_ROUND_OFF:
			wait = Max(naptime, IDEM_LONG_NAP);
			break;
		case IDEM_ROUND_READ_ONLY:
			if (!state->told)
				ereport(LOG,
						(errmsg("idem_tool does not sweep database \"%s\" because \"%s\" is on",
								NameStr(state->name),
								"default_transaction_read_only")));
			state->told = true;
			break;
		case IDEM_ROUND_LOCKED:
			state->hand = round->hand;
			wait = Min(naptime, IDEM_LOCKED_NAP);
			break;
		case IDEM_ROUND_DONE:
			state->hand = round->hand;
			if (round->cut_short)
				wait = Min(naptime, IDEM_SHORT_NAP);
			break;
	}
	if (round->end != IDEM_ROUND_DIED)
		state->failures = 0;
	if (round->end != IDEM_ROUND_READ_ONLY)
		state->told = false;
	state->due = idem_clock() + wait;
}

/* Have everything looked at */
void
idem_databases_all_due(void)
{
	HASH_SEQ_STATUS seq;
	IdemDatabaseState *state;

	if (databases == NULL)
		return;
	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
		state->due = 0;
}

/* How long until a database is due, or the list should be read again */
int64
idem_databases_nap(void)
{
	int64		now = idem_clock();
	int64		usecs = (int64) idem_naptime * 1000;
	HASH_SEQ_STATUS seq;
	IdemDatabaseState *state;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
	{
		/* those that were due and could not be served wait, too */
		if (state->due > now)
			usecs = Min(usecs, state->due - now);
	}
	return usecs;
}

/* Those that are due */
List *
idem_databases_due(void)
{
	int64		now = idem_clock();
	HASH_SEQ_STATUS seq;
	IdemDatabaseState *state;
	List	   *due = NIL;

	hash_seq_init(&seq, databases);
	while ((state = hash_seq_search(&seq)) != NULL)
	{
		if (state->due <= now)
			due = lappend(due, state);
	}
	return due;
}
