/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Bounded waiting for a key that somebody else has.
 *
 * We poll: sleep on the latch, look again, and sleep longer the longer it
 * takes.  That serves committed reservations, which have no transaction to
 * wait for, standbys, where nobody's can be waited for, and rivals'
 * transactions alike; it ends in time by a clock that nobody sets, and a cancel
 * is a cancel.  None of this can be had in a lock's queue: what ends a wait
 * there is an error, raised by the time of day, in the place of which a cancel
 * of the same moment is lost.
 *
 * But who waits for whom is known by the locks' queues: to the deadlock
 * detector, to pg_blocking_pids() and to those who ask it.  So everybody who
 * waits for a transaction stands in its queue now and then for a moment; at the
 * same moments, or two of them would not see each other.  What was said of the
 * queue holds in these moments, which are therefore few and short.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#define MSEC	INT64CONST(1000)

/*
 * The next look comes after this part of the time that was waited so far: a
 * rival that is about to finish is heard of at once, and one that is not costs
 * little.
 */
#define IDEM_POLL_PART		20
#define IDEM_POLL_SHORTEST	(1 * MSEC)
#define IDEM_POLL_LONGEST	(100 * MSEC)

/*
 * How often waiters stand in the queue, and for how long: long enough to be
 * seen by isolationtester, which asks each 10 ms.  Who has waited for some time
 * takes every eighth moment, so that he meets all others.
 */
#define IDEM_QUEUE_PERIOD	(200 * MSEC)
#define IDEM_QUEUE_MOMENT	(15 * MSEC)
#define IDEM_QUEUE_OFTEN	(2000 * MSEC)

/* Microseconds by a clock that nobody sets and all processes share */
static int64
monotonic_usecs(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* A wait for a key begins now, if it comes to one */
void
idem_wait_init(IdemWait *wait)
{
	wait->start = monotonic_usecs();
	wait->deadlock_check = DeadlockTimeout * MSEC;
}

/* Stand in the rival's queue; ended by lock_timeout, in the worst case */
static void
stand_in_queue(TransactionId rival, int64 usecs, bool check_deadlock)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			saved_lock_timeout = LockTimeout;
	int			saved_deadlock_timeout = DeadlockTimeout;
	bool		statement_timeout = get_timeout_active(STATEMENT_TIMEOUT);
	ErrorData  *volatile edata = NULL;

	/* it writes nothing: an error is the only way out of a queue */
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		LockTimeout = (int) Max(usecs / MSEC, 2);
		if (check_deadlock)
			DeadlockTimeout = LockTimeout / 2;
		XactLockTableWait(rival, NULL, NULL, XLTW_None);
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
 * Wait for "rival" while "usecs" are left of the time to wait, "waited" of
 * which are over.  At the moments of the queue we stand in it.
 */
static void
wait_for_rival(IdemWait *wait, TransactionId rival, int64 usecs, int64 waited,
			   int64 interval, TimestampTz next_event)
{
	int64		period = waited < IDEM_QUEUE_OFTEN ? IDEM_QUEUE_PERIOD :
		8 * IDEM_QUEUE_PERIOD;
	int64		into_period = (wait->start + waited) % period;
	int64		moment = Min(IDEM_QUEUE_MOMENT - into_period, usecs);
	bool		check_deadlock = waited >= wait->deadlock_check;

	if (moment < IDEM_POLL_SHORTEST)
	{
		sleep_for(Min(interval, period - into_period), next_event);
		return;
	}

	/* all locks are locked meanwhile: the more rarely, the longer we wait */
	if (check_deadlock)
		wait->deadlock_check = 2 * waited;
	stand_in_queue(rival, moment, check_deadlock);
}

/*
 * Sleep or stand in a queue once.  False if more than "usecs" have passed since
 * the wait began, 55P03 if lock_timeout is shorter and has passed.
 */
static bool
wait_once(IdemWait *wait, int64 usecs, bool brief, TransactionId rival,
		  TimestampTz next_event)
{
	int64		waited = monotonic_usecs() - wait->start;
	int64		limit = usecs;
	int64		interval;

	if (LockTimeout > 0 && !brief)
		limit = Min(limit, LockTimeout * MSEC);
	if (waited >= usecs)
		return false;
	if (waited >= limit)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));

	interval = Max(waited / IDEM_POLL_PART, IDEM_POLL_SHORTEST);
	interval = Min(Min(interval, IDEM_POLL_LONGEST), limit - waited);
	if (TransactionIdIsValid(rival) && !brief && !RecoveryInProgress())
		wait_for_rival(wait, rival, limit - waited, waited, interval,
					   next_event);
	else
		sleep_for(interval, next_event);
	return true;
}

/*
 * Wait until the key may have changed: "rival" finished, if there is one, or
 * it is time for another look, or "next_event" has come (the end of a lease).
 * False at once if more than "usecs" have passed since the wait began; with
 * "brief" IDEM_BRIEF_WAIT at least, which is ours and no business of
 * lock_timeout.  Errors with 55P03 if lock_timeout is shorter than "usecs".
 * The caller must hold no lock but those of his transaction.
 */
bool
idem_wait(IdemWait *wait, int64 usecs, bool brief, TransactionId rival,
		  TimestampTz next_event)
{
	brief = brief && usecs < IDEM_BRIEF_WAIT;
	if (brief)
		usecs = IDEM_BRIEF_WAIT;

	if (!wait_once(wait, usecs, brief, rival, next_event))
		return false;

	/* while the rival goes on there is nothing to see, until the end */
	while (TransactionIdIsValid(rival) && TransactionIdIsInProgress(rival) &&
		   wait_once(wait, usecs, brief, rival, next_event))
		;
	return true;
}
