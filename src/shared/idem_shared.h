/*-------------------------------------------------------------------------
 *
 * idem_shared.h
 *	  What sessions and processes share: shared memory and the counters.
 *
 *	shmem.c		what there is in shared memory, if the library is preloaded
 *	stats.c		counters, and the view that shows them
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_H
#define IDEM_SHARED_H

#include "idem_tool.h"

#include "port/atomics.h"
#include "storage/block.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

/*
 * stats.c: what callers do is counted, per database, if the library is
 * preloaded; at once, so that a rollback does not take it back
 */
typedef enum IdemCount
{
	IDEM_COUNT_RESERVED,
	IDEM_COUNT_TAKEN_OVER,
	IDEM_COUNT_REPLAYED,
	IDEM_COUNT_IN_PROGRESS,
	IDEM_COUNT_UNKNOWN,			/* answered "expired" */
	IDEM_COUNT_MISMATCHED,		/* IK001 */
	IDEM_COUNT_COMPLETED,
	IDEM_COUNT_FAILED,
	IDEM_COUNT_RELEASED,
	IDEM_COUNT_ABANDONED,
	IDEM_COUNT_EXTENDED,
	IDEM_COUNT_LOST,			/* IK002 */
	IDEM_COUNTS
} IdemCount;

extern pg_atomic_uint64 *idem_counts;	/* this session's, once it has any */

extern bool idem_stats_attach(void);

static inline void
idem_count(IdemCount what)
{
	if (idem_counts != NULL || idem_stats_attach())
		pg_atomic_fetch_add_u64(&idem_counts[what], 1);
}

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

/* shmem.c */

/* Where a key's row was seen last */
typedef struct IdemHint
{
	pg_atomic_uint64 hash;		/* of the key and the database */
	pg_atomic_uint64 tid;		/* block and offset number; 0: nothing */
} IdemHint;

/* Set up a table of hints that says nothing */
static inline void
idem_hints_init(IdemHint *hints, int n)
{
	for (int i = 0; i < n; i++)
	{
		pg_atomic_init_u64(&hints[i].hash, 0);
		pg_atomic_init_u64(&hints[i].tid, 0);
	}
}

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

#endif							/* IDEM_SHARED_H */
