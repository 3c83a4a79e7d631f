/*-------------------------------------------------------------------------
 *
 * idem_worker.h
 *	  The launcher, its workers and what they do.
 *
 * Correctness does not depend on any of this: every function judges by time.
 * The sweep makes the table true for people who look at it, and bounded.
 *
 *	launcher.c	one process without a database, which starts the workers
 *	databases.c	whose turn is it?
 *	worker.c	one process for one round in one database; idem_sweep()
 *	sweep.c		what a round does: where the hand goes, and for how long
 *	batch.c		its transactions
 *
 * A round is an IdemRound in a dynamic shared memory segment.  Whoever wants
 * it done fills in the order, starts a worker, waits for its end and reads the
 * result; so it works with and without shared_preload_libraries.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_WORKER_H
#define IDEM_WORKER_H

#include "shared/idem_shared.h"
#include "store/idem_store.h"

#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "storage/block.h"

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
	bool		direct;			/* deletions need no statement */
	Datum	   *marks;			/* places of the rows that were taken */
	Datum	   *deletes;
	int			nmarks;
	int			ndeletes;
	List	   *forgotten;		/* deletions of unknown outcomes, as text */
	char	   *key;			/* a row's name, of a single one for certain */
	ErrorData  *error;			/* why nothing was done */
	IdemRoundEnd end;			/* not DONE: the table is not to be had */
} IdemBatch;

extern IdemDue idem_row_due(const IdemRow *row);
extern void idem_batch_settle(void);
extern IdemRoundEnd idem_batch_begin(IdemBatch *batch);
extern void idem_batch_commit(IdemBatch *batch);
extern void idem_batch_write(IdemBatch *batch, ItemPointerData *tids, int n);
extern void idem_batch_trim_audit(IdemBatch *batch, int max_rows);

#endif							/* IDEM_WORKER_H */
