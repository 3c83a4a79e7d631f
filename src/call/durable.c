/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  Which commits must reach the disk even under synchronous_commit = off.
 *
 * A caller who was told "reserved" goes on to have an effect outside; if the
 * server then crashes and forgets, the next caller has the effect again.  So a
 * commit is flushed if it leaves a reservation open or touches one that an
 * earlier transaction made.  A reservation that is made and settled in one
 * transaction follows the session's setting: the effect is in there too.
 *
 * Since forcing a commit cannot be undone, it is decided at pre-commit from
 * what the savepoints have left.  Counters are enough: own reservations add
 * one, settling them takes one away.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/xact.h"
#include "utils/memutils.h"

/* What one (sub)transaction and its committed children did */
typedef struct DurableLevel
{
	struct DurableLevel *parent;
	int			nest_level;
	int64		open;			/* own reservations made, less those settled */
	bool		must_flush;		/* an earlier transaction's was touched */
} DurableLevel;

/* Innermost level that did anything, in TopTransactionContext */
static DurableLevel *current = NULL;

static DurableLevel *
current_level(void)
{
	int			nest_level = GetCurrentTransactionNestLevel();

	if (current == NULL || current->nest_level < nest_level)
	{
		DurableLevel *level = MemoryContextAllocZero(TopTransactionContext,
													 sizeof(DurableLevel));

		level->parent = current;
		level->nest_level = nest_level;
		current = level;
	}
	return current;
}

/* This transaction reserved a key */
void
idem_durable_reserved(void)
{
	current_level()->open++;
}

/* It settled a reservation that it had made itself */
void
idem_durable_settled(void)
{
	current_level()->open--;
}

/* It changed a reservation that an earlier transaction had made */
void
idem_durable_must_flush(void)
{
	current_level()->must_flush = true;
}

static void
pop_level(void)
{
	DurableLevel *level = current;

	current = level->parent;
	pfree(level);
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			nest_level = GetCurrentTransactionNestLevel();

	if (current == NULL || current->nest_level < nest_level)
		return;

	if (event == SUBXACT_EVENT_ABORT_SUB)
		pop_level();
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		DurableLevel *parent = current->parent;

		if (parent == NULL || parent->nest_level < nest_level - 1)
			current->nest_level--;
		else
		{
			parent->open += current->open;
			parent->must_flush |= current->must_flush;
			pop_level();
		}
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (current && idem_durable &&
				(current->must_flush || current->open != 0))
				ForceSyncCommit();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			/* PREPARE TRANSACTION and COMMIT PREPARED are always flushed */
			current = NULL;
			break;
		default:
			break;
	}
}

/* Called once per backend, when the library is loaded */
void
idem_durable_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
