/*-------------------------------------------------------------------------
 *
 * callsite.c
 *	  One answer for all call sites of (idem_reserve(...)).*, or idem_begin
 *
 * PostgreSQL expands that into one call per column.  Judged separately, the
 * first would be told "reserved" and the others "in_progress", about
 * themselves.  So a call in an expression repeats the answer that another call
 * site of the same statement got for the same arguments, each site once; the
 * site that comes round again is at the next row and judges anew.
 *
 * Calls in FROM are made once and are not affected.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#define IDEM_MAX_SITE_ARGS	7

/* An answer given in an expression of a statement */
typedef struct GivenAnswer
{
	Oid			function;
	NullableDatum args[IDEM_MAX_SITE_ARGS];
	HeapTuple	answer;
	List	   *sites;			/* FmgrInfos that have had it */
} GivenAnswer;

/* The answers that a statement got for the row it is at */
typedef struct StatementMemo
{
	struct StatementMemo *next;
	MemoryContext statement;	/* its memory, where its FmgrInfos live */
	MemoryContext cxt;			/* ours, a child of that */
	CommandId	curcid;			/* of its snapshot: tells PL/pgSQL's apart */
	List	   *answers;		/* of GivenAnswer */
	MemoryContextCallback callback;
} StatementMemo;

/* All statements under way; nested ones come first */
static StatementMemo *memos = NULL;

/* The memory goes: the statement is over, or at its next row */
static void
unlink_memo(void *arg)
{
	for (StatementMemo **link = &memos; *link; link = &(*link)->next)
	{
		if (*link == arg)
		{
			*link = (*link)->next;
			break;
		}
	}
}

static CommandId
snapshot_cid(void)
{
	return ActiveSnapshotSet() ? GetActiveSnapshot()->curcid :
		InvalidCommandId;
}

static StatementMemo *
find_memo(MemoryContext statement)
{
	for (StatementMemo *memo = memos; memo; memo = memo->next)
	{
		if (memo->statement == statement)
			return memo;
	}
	return NULL;
}

static StatementMemo *
create_memo(MemoryContext statement)
{
	MemoryContext cxt = AllocSetContextCreate(statement,
											  "idem_reserve answers",
											  ALLOCSET_SMALL_SIZES);
	StatementMemo *memo = MemoryContextAllocZero(cxt, sizeof(StatementMemo));

	memo->statement = statement;
	memo->cxt = cxt;
	memo->curcid = snapshot_cid();
	memo->callback.func = unlink_memo;
	memo->callback.arg = memo;
	MemoryContextRegisterResetCallback(cxt, &memo->callback);
	memo->next = memos;
	memos = memo;
	return memo;
}

static bool
same_call(FunctionCallInfo fcinfo, const int *arglens, GivenAnswer *given)
{
	if (fcinfo->flinfo->fn_oid != given->function)
		return false;
	for (int i = 0; i < fcinfo->nargs; i++)
	{
		if (fcinfo->args[i].isnull != given->args[i].isnull)
			return false;
		if (!fcinfo->args[i].isnull &&
			!datumIsEqual(fcinfo->args[i].value, given->args[i].value,
						  false, arglens[i]))
			return false;
	}
	return true;
}

/* Has this call site had any of the answers? */
static bool
has_been_here(StatementMemo *memo, FmgrInfo *site)
{
	ListCell   *lc;

	foreach(lc, memo->answers)
	{
		if (list_member_ptr(((GivenAnswer *) lfirst(lc))->sites, site))
			return true;
	}
	return false;
}

/*
 * A copy of the answer that this call has to repeat, or NULL if it must judge.
 * "arglens" are the lengths of its argument types, all by reference.
 */
HeapTuple
idem_callsite_recall(FunctionCallInfo fcinfo, const int *arglens)
{
	StatementMemo *memo;
	ListCell   *lc;

	if (memos == NULL || fcinfo->resultinfo != NULL)
		return NULL;
	memo = find_memo(fcinfo->flinfo->fn_mcxt);
	if (memo == NULL)
		return NULL;

	/* the next row, or another expression of a PL/pgSQL function */
	if (memo->curcid != snapshot_cid() || has_been_here(memo, fcinfo->flinfo))
	{
		MemoryContextDelete(memo->cxt);
		return NULL;
	}

	foreach(lc, memo->answers)
	{
		GivenAnswer *given = lfirst(lc);

		if (same_call(fcinfo, arglens, given))
		{
			MemoryContext oldcxt = MemoryContextSwitchTo(memo->cxt);

			given->sites = lappend(given->sites, fcinfo->flinfo);
			MemoryContextSwitchTo(oldcxt);
			return heap_copytuple(given->answer);
		}
	}
	return NULL;
}

/*
 * Keep the answer for the statement's other call sites.
 */
void
idem_callsite_remember(FunctionCallInfo fcinfo, const int *arglens,
					   HeapTuple answer)
{
	StatementMemo *memo;
	GivenAnswer *given;
	MemoryContext oldcxt;

	if (fcinfo->resultinfo != NULL)
		return;

	memo = find_memo(fcinfo->flinfo->fn_mcxt);
	if (memo == NULL)
		memo = create_memo(fcinfo->flinfo->fn_mcxt);

	oldcxt = MemoryContextSwitchTo(memo->cxt);
	given = palloc0(sizeof(GivenAnswer));
	given->function = fcinfo->flinfo->fn_oid;
	for (int i = 0; i < fcinfo->nargs; i++)
	{
		given->args[i].isnull = fcinfo->args[i].isnull;
		if (!fcinfo->args[i].isnull)
			given->args[i].value = datumCopy(fcinfo->args[i].value, false,
											 arglens[i]);
	}
	given->answer = heap_copytuple(answer);
	given->sites = list_make1(fcinfo->flinfo);
	memo->answers = lappend(memo->answers, given);
	MemoryContextSwitchTo(oldcxt);

	/*
	 * PL/pgSQL evaluates all its simple expressions in one memory context,
	 * each under a snapshot with the command id of its time: see to it that
	 * the next one has another.
	 */
	(void) GetCurrentCommandId(true);
	CommandCounterIncrement();
}
