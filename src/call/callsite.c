/*-------------------------------------------------------------------------
 *
 * callsite.c
 *	  One answer for all call sites of (idem_reserve(...)).*, or idem_begin
 *
 * PostgreSQL expands that into one call per column.  Judged separately, the
 * first would be told "reserved" and the others "in_progress", about
 * themselves.  So a call in an expression repeats the answer that another call
 * site got for the same arguments in the same row, each site once.
 *
 * The answers are kept in the memory in which the row's expressions are
 * evaluated, which the executor resets for the next row, and PL/pgSQL for the
 * next statement: they end with what they are good for.
 *
 * Calls in FROM are made once and are not affected.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/htup_details.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#define IDEM_MAX_SITE_ARGS	8

/* An answer that was given in a row */
typedef struct GivenAnswer
{
	Oid			function;
	NullableDatum args[IDEM_MAX_SITE_ARGS];
	HeapTuple	answer;
	List	   *sites;			/* FmgrInfos that have had it */
} GivenAnswer;

/* The answers of a row that is being evaluated */
typedef struct RowMemo
{
	struct RowMemo *next;
	MemoryContext row;			/* where its expressions are evaluated */
	MemoryContext statement;	/* where the FmgrInfos live */
	List	   *answers;		/* of GivenAnswer */
	MemoryContextCallback callback;
} RowMemo;

/* All rows under way, those of nested statements first */
static RowMemo *memos = NULL;

/* The row is done */
static void
unlink_memo(void *arg)
{
	for (RowMemo **link = &memos; *link; link = &(*link)->next)
	{
		if (*link == arg)
		{
			*link = (*link)->next;
			break;
		}
	}
}

static RowMemo *
find_memo(FunctionCallInfo fcinfo)
{
	for (RowMemo *memo = memos; memo; memo = memo->next)
	{
		if (memo->row == CurrentMemoryContext &&
			memo->statement == fcinfo->flinfo->fn_mcxt)
			return memo;
	}
	return NULL;
}

static RowMemo *
create_memo(FunctionCallInfo fcinfo)
{
	RowMemo    *memo = palloc0(sizeof(RowMemo));

	memo->row = CurrentMemoryContext;
	memo->statement = fcinfo->flinfo->fn_mcxt;
	memo->callback.func = unlink_memo;
	memo->callback.arg = memo;
	MemoryContextRegisterResetCallback(memo->row, &memo->callback);
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
						  arglens[i] == IDEM_BY_VALUE, arglens[i]))
			return false;
	}
	return true;
}

/* Has this call site had any of the answers? */
static bool
has_been_here(RowMemo *memo, FmgrInfo *site)
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
 * "arglens" are the lengths of its argument types, or IDEM_BY_VALUE.
 */
HeapTuple
idem_callsite_recall(FunctionCallInfo fcinfo, const int *arglens)
{
	RowMemo    *memo;
	ListCell   *lc;

	if (memos == NULL || fcinfo->resultinfo != NULL)
		return NULL;
	memo = find_memo(fcinfo);
	if (memo == NULL)
		return NULL;

	/* a loop within the row */
	if (has_been_here(memo, fcinfo->flinfo))
	{
		memo->answers = NIL;
		return NULL;
	}

	foreach(lc, memo->answers)
	{
		GivenAnswer *given = lfirst(lc);

		if (same_call(fcinfo, arglens, given))
		{
			given->sites = lappend(given->sites, fcinfo->flinfo);
			return heap_copytuple(given->answer);
		}
	}
	return NULL;
}

/*
 * Keep the answer for the row's other call sites.
 */
void
idem_callsite_remember(FunctionCallInfo fcinfo, const int *arglens,
					   HeapTuple answer)
{
	RowMemo    *memo;
	GivenAnswer *given;

	if (fcinfo->resultinfo != NULL)
		return;

	memo = find_memo(fcinfo);
	if (memo == NULL)
		memo = create_memo(fcinfo);

	given = palloc0(sizeof(GivenAnswer));
	given->function = fcinfo->flinfo->fn_oid;
	for (int i = 0; i < fcinfo->nargs; i++)
	{
		given->args[i].isnull = fcinfo->args[i].isnull;
		if (!fcinfo->args[i].isnull)
			given->args[i].value = datumCopy(fcinfo->args[i].value,
											 arglens[i] == IDEM_BY_VALUE,
											 arglens[i]);
	}
	given->answer = heap_copytuple(answer);
	given->sites = list_make1(fcinfo->flinfo);
	memo->answers = lappend(memo->answers, given);
}
