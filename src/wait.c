/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Bounded waiting for a key that somebody else has.
 *
 * An uncommitted rival is waited for by its transaction id, which wakes us at
 * once, shows in pg_blocking_pids() and takes part in deadlock detection.
 *
 * A committed reservation has no transaction to wait for, and on a standby
 * nobody's can be: there we poll.  Of all waiters of a key one polls while the
 * others sleep in the lock manager behind its polling lock, so that 64 of them
 * cost what one does.  Whoever sees a change lets go of the lock; the next one
 * gets it, looks, and polls on if there was nothing in it for him.
 *
 * Every wait for a lock is bounded by lock_timeout in a subtransaction that
 * writes nothing; it is there because an error is the only way out of a wait.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

/*
 * How often the poller looks: after 1 ms, 2, 4, then every 8, so that a rival
 * that is about to finish costs little and one that is not costs less.
 */
#define IDEM_POLL_SHORTEST	1
#define IDEM_POLL_LONGEST	8

/* A wait for "key" begins now, if it comes to one */
void
idem_wait_init(IdemWait *wait, const IdemKey *key)
{
	wait->key = key;
	wait->start = GetCurrentTimestamp();
	wait->interval = IDEM_POLL_SHORTEST;
	wait->polling = false;
}

/*
 * The moment at which the session's lock_timeout ends this wait, as it would
 * end any other.
 */
static TimestampTz
timeout_end(IdemWait *wait)
{
	if (LockTimeout <= 0)
		return DT_NOEND;
	return wait->start + (int64) LockTimeout * 1000;
}

/* Wait for one of two locks: a rival's transaction, or the polling lock */
static void
wait_for_lock(IdemWait *wait, TransactionId rival, ResourceOwner owner)
{
	LOCKTAG		tag;

	if (TransactionIdIsValid(rival))
	{
		XactLockTableWait(rival, NULL, NULL, XLTW_None);
		return;
	}

	/* the lock must outlive the subtransaction */
	CurrentResourceOwner = owner;
	idem_key_locktag(&tag, wait->key, IDEM_LOCK_POLLING);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	wait->polling = true;
}

/*
 * The same until "end" at most.  Errors other than our own time-out, such as
 * a deadlock or a cancel, are the caller's.
 */
static void
wait_for_lock_until(IdemWait *wait, TransactionId rival, TimestampTz end)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			saved_timeout = LockTimeout;
	ErrorData  *volatile edata = NULL;
	long		msecs = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);

	if (msecs <= 0)
		return;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		LockTimeout = (int) Min(msecs, INT_MAX);
		wait_for_lock(wait, rival, owner);

		/* the time may have run out just as we got the lock */
		CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcxt);
		edata = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	LockTimeout = saved_timeout;

	/* nothing was written, so rolling back is right for success as well */
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(oldcxt);
	CurrentResourceOwner = owner;

	if (edata && edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(edata);
}

/* Sleep until the next look is due, as the one poller of this key */
static void
sleep_until(IdemWait *wait, TimestampTz end)
{
	TimestampTz now = GetCurrentTimestamp();
	long		msecs = TimestampDifferenceMilliseconds(now, end);

	msecs = Max(Min(msecs, wait->interval), IDEM_POLL_SHORTEST);
	wait->interval = Min(wait->interval * 2, IDEM_POLL_LONGEST);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 msecs, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Become the poller if nobody is */
static bool
try_polling(IdemWait *wait)
{
	LOCKTAG		tag;

	if (!wait->polling)
	{
		idem_key_locktag(&tag, wait->key, IDEM_LOCK_POLLING);
		wait->polling = LockAcquire(&tag, ExclusiveLock, false, true) !=
			LOCKACQUIRE_NOT_AVAIL;
	}
	return wait->polling;
}

/*
 * Wait until the key may have changed: "rival" finished, if there is one, or
 * it is time for another look, or "next_event" has come (the end of a lease).
 * False at once if more than "usecs" have passed since the wait began; with
 * "brief" IDEM_BRIEF_WAIT at least, which is ours and no business of
 * lock_timeout.  Errors with 55P03 if lock_timeout is shorter than "usecs".
 * The caller must hold no lock but those of his transaction, and calls
 * idem_wait_end() when he stops waiting.
 */
bool
idem_wait(IdemWait *wait, int64 usecs, bool brief, TransactionId rival,
		  TimestampTz next_event)
{
	TimestampTz until = wait->start + usecs;
	TimestampTz end = Min(until, timeout_end(wait));
	TimestampTz now = GetCurrentTimestamp();

	if (brief && usecs < IDEM_BRIEF_WAIT)
		until = end = wait->start + IDEM_BRIEF_WAIT;
	if (now >= until)
		return false;
	if (now >= end)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));

	if (TransactionIdIsValid(rival) && !RecoveryInProgress())
	{
		/*
		 * A subtransaction's fate can be decided before its transaction ends,
		 * which is what waiting for it amounts to: look now and then, after
		 * deadlocks have had their time to be found.
		 */
		idem_wait_end(wait);
		wait_for_lock_until(wait, rival,
							Min(end, now + (int64) DeadlockTimeout * 2000));
	}
	else if (try_polling(wait))
		sleep_until(wait, Min(end, next_event));
	else
		wait_for_lock_until(wait, InvalidTransactionId, end);
	return true;
}

/* Let the next waiter of the key have his turn */
void
idem_wait_end(IdemWait *wait)
{
	LOCKTAG		tag;

	if (!wait->polling)
		return;
	idem_key_locktag(&tag, wait->key, IDEM_LOCK_POLLING);
	LockRelease(&tag, ExclusiveLock, false);
	wait->polling = false;
}
