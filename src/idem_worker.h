/*-------------------------------------------------------------------------
 *
 * idem_worker.h
 *	  The launcher, its workers and the counters: shared declarations.
 *
 * Correctness does not depend on any of this: every function judges by time.
 * The sweep makes the table true for people who look at it, and bounded.
 *
 *	launcher.c	one process without a database, which starts the workers
 *	databases.c	whose turn is it?
 *	worker.c	one process for one round in one database; idem_sweep()
 *	sweep.c		what a round does: where the hand goes, and for how long
 *	batch.c		its transactions
 *	shmem.c		what outlives a round in shared memory, if preloaded
 *	stats.c		counters, and the view that shows them
 *
 * A round is an IdemRound in a dynamic shared memory segment.  Whoever wants
 * it done fills in the order, starts a worker, waits for its end and reads the
 * result; so it works with and without shared_preload_libraries.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_WORKER_H
#define IDEM_WORKER_H

#include "idem_tool.h"

#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "storage/block.h"

/* How a round ended */
typedef enum IdemRoundEnd
{
	IDEM_ROUND_DIED,			/* the worker left no word */
	IDEM_ROUND_DONE,
	IDEM_ROUND_ABSENT,			/* the database has no idem_tool */
	IDEM_ROUND_OFF,				/* idem_tool.worker is off there */
	IDEM_ROUND_READ_ONLY,		/* default_transaction_read_only is on there */
	IDEM_ROUND_LOCKED			/* somebody has the table to himself */
} IdemRoundEnd;

/* The clock's hand: where the sweep of a table is */
typedef struct IdemHand
{
	BlockNumber page;			/* next to visit; InvalidBlockNumber: any */
	uint64		walked;			/* pages since the revolution began */
	int64		started;		/* when that was, by idem_clock(); 0: not known */
	int64		revolution;		/* how long the last one took, in usecs */
	int64		ownerless;		/* rows met since, whose owner role is gone */
	int64		last_ownerless; /* in the last one */
} IdemHand;

/* One round: order and result */
typedef struct IdemRound
{
	Oid			database;
	bool		whole;			/* a revolution however long it takes, for SQL */
	int			unknown_ttl;	/* whole: the caller's setting */
	IdemHand	hand;			/* in and out */

	IdemRoundEnd end;
	bool		cut_short;		/* by the clock: there is more to do */
	int64		pages;			/* visited */
	BlockNumber table_pages;	/* that there are */
	int64		expired;		/* leases marked as lapsed */
	int64		deleted;		/* rows past their memory */
	int64		forgotten;		/* of these: with their outcome unknown */
	int64		refused;		/* rows whose triggers or foreign keys object */
	char		error[256];		/* why the worker died, if it could tell */
} IdemRound;

/* Settings */
extern bool idem_worker;
extern int	idem_naptime;		/* in milliseconds */
extern int	idem_sweep_pages;

/* launcher.c */
extern void idem_launcher_init(void);
extern PGDLLEXPORT void idem_launcher_main(Datum main_arg);

/* databases.c */
/* What the launcher knows of a database */
typedef struct IdemDatabaseState
{
	Oid			oid;
	NameData	name;
	bool		listed;			/* in the list that was read last */
	bool		told;			/* that it is not swept, in the log */
	int			failures;		/* workers that died since one did not */
	int64		due;			/* by idem_clock() */
	IdemHand	hand;
} IdemDatabaseState;

extern void idem_databases_list(void);
extern bool idem_database_accessible(Oid database);
extern void idem_database_schedule(IdemDatabaseState *state,
								   IdemRound *round);
extern void idem_databases_all_due(void);
extern int64 idem_databases_nap(void);
extern List *idem_databases_due(void);

/* worker.c */
extern BackgroundWorkerHandle *idem_worker_start(IdemRound *round,
												 uint32 segment);
extern void idem_worker_settle(void);
extern PGDLLEXPORT void idem_worker_main(Datum main_arg);

/* sweep.c */
extern void idem_sweep_round(IdemRound *round);

/* batch.c */
typedef enum IdemDue
{
	IDEM_NOT_DUE,
	IDEM_MARK,					/* lapsed: to be "expired" */
	IDEM_DELETE					/* past its memory */
} IdemDue;

/* One transaction */
typedef struct IdemBatch
{
	MemoryContext cxt;			/* the caller's */
	IdemStore	store;

	ItemPointerData *tids;		/* the rows to be looked at */
	int			nrows;			/* how many */
	bool		looked;			/* at them: an error is about one of them */
	Datum	   *marks;			/* places of the rows that were locked */
	Datum	   *deletes;
	int			nmarks;
	int			ndeletes;
	List	   *forgotten;		/* deletions of unknown outcomes, as text */
	char	   *key;			/* a row's name, of a single one for certain */
	ErrorData  *error;			/* why nothing was done */
	IdemRoundEnd end;			/* not DONE: the table is not to be had */
} IdemBatch;

extern IdemDue idem_row_due(const IdemRow *row);
extern IdemRoundEnd idem_batch_begin(IdemBatch *batch);
extern void idem_batch_commit(IdemBatch *batch);
extern void idem_batch_write(IdemBatch *batch, ItemPointerData *tids, int n);
extern void idem_batch_trim_audit(IdemBatch *batch, int max_rows);

/* hint.c */
/* Where a key's row was seen last */
typedef struct IdemHint
{
	pg_atomic_uint64 hash;		/* of the key and the database */
	pg_atomic_uint64 tid;		/* block and offset number; 0: nothing */
} IdemHint;

extern void idem_hints_init(IdemHint *hints, int n);

/* shmem.c */

/* Databases that can be counted; those beyond are swept all the same */
#define IDEM_STATS_DATABASES	128

/* Keys share so many marks, see keylock.c */
#define IDEM_MARKS	1024

/* Callers of a database spread over this many sets of counters */
#define IDEM_STRIPES	8

/* One set of counters, on cache lines of its own */
typedef union IdemStripe
{
	pg_atomic_uint64 counts[IDEM_COUNTS];
	char		padding[2 * PG_CACHE_LINE_SIZE];
} IdemStripe;

/* What is counted of one database */
typedef struct IdemDatabase
{
	Oid			oid;			/* InvalidOid: free; changes under the lock */
	TimestampTz since;
	slock_t		mutex;			/* protects the following */
	int64		rounds;
	int64		expired;
	int64		deleted;
	int64		forgotten;
	int64		refused;
	TimestampTz last_round;		/* its start; 0: none yet */
	int64		duration;		/* of it, in usecs */
	BlockNumber table_pages;
	IdemHand	hand;
	IdemStripe	stripes[IDEM_STRIPES];
} IdemDatabase;

/* A power of two: 4 MB, for the keys of the last minutes */
#define IDEM_SHARED_HINTS	(256 * 1024)

typedef struct IdemShared
{
	IdemHint	hints[IDEM_SHARED_HINTS];	/* aligned, being the first */
	LWLock	   *lock;			/* who has which of the databases */
	pg_atomic_uint32 launcher;	/* its process id, 0 if there is none */
	pg_atomic_uint32 wakes;		/* counts calls of idem_wake_worker() */
	pg_atomic_uint64 marks[IDEM_MARKS]; /* releases of a key's lock */
	IdemDatabase databases[IDEM_STATS_DATABASES];
} IdemShared;

extern IdemShared *idem_shared; /* NULL unless preloaded */

extern void idem_shmem_init(void);

/* stats.c */
extern void idem_stats_round(IdemRound *round, TimestampTz start,
							 int64 duration);
extern void idem_stats_forget(Oid database);

#endif							/* IDEM_WORKER_H */
