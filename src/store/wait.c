/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Bounded waiting for a key that somebody else has, or for the table.
 *
 * We poll: sleep on the latch, look again, and sleep longer the longer it
 * takes.  Of all waiters of a key one looks often; the others look rarely, and
 * are woken by him when he has seen what he was waiting for.  That serves committed reservations, which have no transaction to
 * wait for, standbys, where nobody's can be waited for, and rivals'
 * transactions alike; it ends in time by a clock that nobody sets, and a cancel
 * is a cancel.  None of this can be had in a lock's queue: what ends a wait
 * there is an error, raised by the time of day, in the place of which a cancel
 * of the same moment is lost.
 *
 * But who waits for whom is known by the locks' queues: to the deadlock
 * detector, to pg_blocking_pids() and to those who ask it.  So everybody who
 * waits for a transaction or a relation stands in its queue now and then for a
 * moment; at the same moments, or two of them would not see each other.  What
 * was said of the queue holds in these moments, which are therefore few and
 * short.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#define MSEC	INT64CONST(1000)

/*
 * The next look comes after this part of the time that was waited so far: a
 * rival that is about to finish is heard of at once, and one that is not costs
 * little.  It is no longer than IDEM_POLL_OFTEN for the one who looks often; all
 * others sleep for the longest time, unless they are woken.
 */
#define IDEM_POLL_PART		20
#define IDEM_POLL_SHORTEST	(1 * MSEC)
#define IDEM_POLL_OFTEN		(8 * MSEC)
#define IDEM_POLL_LONGEST	(100 * MSEC)

/*
 * How often waiters stand in the queue, and for how long: long enough to be
 * seen by isolationtester, which asks each 10 ms.  Who has waited for some time
 * takes every eighth moment, so that he meets all others.
 */
#define IDEM_QUEUE_PERIOD	(200 * MSEC)
#define IDEM_QUEUE_MOMENT	(15 * MSEC)
#define IDEM_QUEUE_OFTEN	(2000 * MSEC)

/* So long even those wait for a lock on the table who do not want to */
#define IDEM_DDL_WAIT		(1000 * MSEC)

/* What is waited for: the end of a transaction, or the lock on a relation */
typedef struct Queue
{
	TransactionId rival;
	Oid			relid;
	LOCKMODE	lockmode;
} Queue;

/* A call that is willing to wait for the key for "usecs" begins now */
void
idem_wait_init(IdemWait *wait, const IdemKey *key, int64 usecs)
{
	wait->key = key;
	wait->listed = wait->polling = false;
	wait->start = idem_clock();
	wait->usecs = usecs;
	wait->deadlock_check = DeadlockTimeout * MSEC;
}

/* Wait in the queue, for as long as it takes */
static void
wait_in_queue(const Queue *queue)
{
	if (TransactionIdIsValid(queue->rival))
		XactLockTableWait(queue->rival, NULL, NULL, XLTW_None);
	else
		LockRelationOid(queue->relid, queue->lockmode);
}

/*
 * Stand in the queue, ended by lock_timeout in the worst case.  True if that
 * was not necessary.
 */
static bool
stand_in_queue(const Queue *queue, int64 usecs, bool check_deadlock)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			saved_lock_timeout = LockTimeout;
	int			saved_deadlock_timeout = DeadlockTimeout;
	bool		statement_timeout = get_timeout_active(STATEMENT_TIMEOUT);
	volatile bool reached = false;
	ErrorData  *volatile edata = NULL;

	/* it writes nothing: an error is the only way out of a queue */
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		/* the lock must outlive the subtransaction */
		CurrentResourceOwner = owner;
		LockTimeout = (int) Max(usecs / MSEC, 2);
		if (check_deadlock)
			DeadlockTimeout = LockTimeout / 2;
		wait_in_queue(queue);
		reached = true;

		/* the time may have run out just then */
		CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcxt);
		edata = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	LockTimeout = saved_lock_timeout;
	DeadlockTimeout = saved_deadlock_timeout;

	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(oldcxt);
	CurrentResourceOwner = owner;

	if (edata && edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);

	/* of two timeouts at once one is reported, and the other forgotten */
	if (statement_timeout && !get_timeout_active(STATEMENT_TIMEOUT))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceling statement due to statement timeout")));
	return reached;
}

/* Take one of the two locks on the key that waiters have, without waiting */
static bool
try_lock(IdemWait *wait, uint16 lockclass, LOCKMODE lockmode)
{
	LOCKTAG		tag;

	idem_key_locktag(&tag, wait->key, lockclass);
	return LockAcquire(&tag, lockmode, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Be one of the key's waiters, and the one who looks often if nobody does.  Both
 * are told by locks, which go when their holder does, however he ends.
 */
static void
enlist(IdemWait *wait)
{
	if (!wait->listed)
		wait->listed = try_lock(wait, IDEM_LOCK_WAITING, ShareLock);
	if (!wait->polling)
		wait->polling = try_lock(wait, IDEM_LOCK_POLLING, ExclusiveLock);
}

/* Have all other waiters of the key look at it, and find one who looks often */
static void
wake_others(const LOCKTAG *waiting)
{
	int			n;
	VirtualTransactionId *waiters = GetLockConflicts(waiting, ExclusiveLock, &n);

	for (int i = 0; i < n; i++)
	{
		PGPROC	   *proc = idem_vxid_proc(waiters[i]);

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
}

/*
 * The call has its answer.  Who has looked for the others lets go of that before
 * he wakes them: whoever comes too late to be woken finds that it is his turn.
 */
void
idem_wait_end(IdemWait *wait)
{
	LOCKTAG		tag;

	if (wait->polling)
	{
		idem_key_locktag(&tag, wait->key, IDEM_LOCK_POLLING);
		LockRelease(&tag, ExclusiveLock, false);
	}
	if (!wait->listed)
		return;
	idem_key_locktag(&tag, wait->key, IDEM_LOCK_WAITING);
	if (wait->polling)
		wake_others(&tag);
	LockRelease(&tag, ShareLock, false);
}

/* Sleep for so long, or until "next_event" if that comes first */
static void
sleep_for(int64 usecs, TimestampTz next_event)
{
	long		msecs = (long) ((usecs + MSEC - 1) / MSEC);
	long		until_event = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
															  next_event);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Max(Min(msecs, until_event), 1), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Sleep until the next look is due, "waited" after the start and not after
 * "limit", or stand in the queue if this is the moment.  True if its end was
 * reached.
 */
static bool
sleep_or_queue(IdemWait *wait, const Queue *queue, int64 waited, int64 limit,
			   TimestampTz next_event)
{
	int64		period = waited < IDEM_QUEUE_OFTEN ? IDEM_QUEUE_PERIOD :
		8 * IDEM_QUEUE_PERIOD;
	int64		into_period = (wait->start + waited) % period;
	int64		moment = Min(IDEM_QUEUE_MOMENT - into_period, limit - waited);
	int64		interval = Max(waited / IDEM_POLL_PART, IDEM_POLL_SHORTEST);
	bool		check_deadlock = waited >= wait->deadlock_check;

	if (queue == NULL || moment < IDEM_POLL_SHORTEST)
	{
		if (wait->listed)
			interval = wait->polling ? Min(interval, IDEM_POLL_OFTEN) :
				IDEM_POLL_LONGEST;
		interval = Min(interval, IDEM_POLL_LONGEST);
		interval = Min(interval, limit - waited);
		if (queue)
			interval = Min(interval, period - into_period);
		sleep_for(interval, next_event);
		return false;
	}

	/* all locks are locked meanwhile: the more rarely, the longer we wait */
	if (check_deadlock)
		wait->deadlock_check = 2 * waited;
	return stand_in_queue(queue, moment, check_deadlock);
}

/* Has the session's lock_timeout passed?  It ends our waits like any other. */
static void
check_lock_timeout(int64 waited)
{
	if (LockTimeout > 0 && waited >= LockTimeout * MSEC)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
}

/*
 * Wait until the key may have changed: "rival" finished, if there is one, or
 * it is time for another look, or "next_event" has come (the end of a lease).
 * False at once if the time to wait has passed; with "brief" IDEM_BRIEF_WAIT at
 * least, which is ours and no business of lock_timeout.  Errors with 55P03 if
 * lock_timeout is shorter.  The caller must hold no lock but those of his
 * transaction.
 */
bool
idem_wait(IdemWait *wait, bool brief, TransactionId rival,
		  TimestampTz next_event)
{
	Queue		queue = {.rival = rival};
	bool		in_queue = TransactionIdIsValid(rival) && !RecoveryInProgress();
	int64		usecs = wait->usecs;
	int64		limit = usecs;
	int64		waited = idem_clock() - wait->start;

	if (brief && usecs < IDEM_BRIEF_WAIT)
	{
		limit = usecs = IDEM_BRIEF_WAIT;
		in_queue = false;
	}
	else if (LockTimeout > 0)
		limit = Min(limit, LockTimeout * MSEC);

	if (waited >= usecs)
		return false;
	if (!brief)
		enlist(wait);

	/* while the rival goes on there is nothing to see, until the end */
	do
	{
		if (limit < usecs)
			check_lock_timeout(waited);
		sleep_or_queue(wait, in_queue ? &queue : NULL, waited, limit,
					   next_event);
		waited = idem_clock() - wait->start;
	} while (waited < usecs && TransactionIdIsValid(rival) &&
			 TransactionIdIsInProgress(rival));
	return true;
}

/*
 * Lock a relation that somebody has locked or waits to lock.  A short change of
 * its definition is waited for by everybody; who wants to wait for longer, does.
 */
static void
wait_for_relation(IdemWait *wait, Oid relid, LOCKMODE lockmode)
{
	Queue		queue = {.relid = relid,.lockmode = lockmode};
	int64		waited = idem_clock() - wait->start;
	int64		usecs = Max(wait->usecs, waited + IDEM_DDL_WAIT);
	int64		limit = usecs;
	char	   *name = get_rel_name(relid);

	if (LockTimeout > 0)
		limit = Min(limit, LockTimeout * MSEC);
	while (!sleep_or_queue(wait, &queue, waited, limit, DT_NOEND) &&
		   !ConditionalLockRelationOid(relid, lockmode))
	{
		waited = idem_clock() - wait->start;
		check_lock_timeout(waited);
		if (waited >= usecs)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not obtain lock on relation \"%s\"",
							name ? name : IDEM_TABLE_NAME),
					 errdetail("Another session has locked it, or waits to do so."),
					 errhint("Look for who waits for whom with pg_blocking_pids(): see \"A call that does not return\" in docs/operations.md.")));
	}
}

/*
 * Lock one of the extension's objects, waiting as "wait" has it, NULL: as any
 * statement.  PostgreSQL locks before it looks at privileges, so that anybody
 * who can name an object could let callers of idem_reserve wait behind him, for
 * as long as anybody's transaction is open.
 */
void
idem_lock_relation(IdemWait *wait, Oid relid, LOCKMODE lockmode)
{
	if (ConditionalLockRelationOid(relid, lockmode))
		return;
	if (wait)
		wait_for_relation(wait, relid, lockmode);
	else
		LockRelationOid(relid, lockmode);
}
