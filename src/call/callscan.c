/*-------------------------------------------------------------------------
 *
 * callscan.c
 *	  Execute a call in FROM: the scan node that callplan.c plans.
 *
 * It does what nodeFunctionscan.c does for a function with one row or none: the
 * call is made at the first fetch, a rescan repeats the answer unless parameters
 * of the call have changed, and the scan goes forward and backward.  The answer
 * lives in memory of the node until the next call.
 *
 * There is no EvalPlanQual to care for.  Where it repeats a query it takes rows
 * of our scan as a whole, and such are not planned so; in a subquery, or an arm of
 * UNION ALL, that is evaluated anew it is a scan like any other, for which
 * ExecScan(), which would take it for a join, is not used.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "catalog/objectaccess.h"
#include "executor/executor.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "nodes/nodeFuncs.h"
#include "pgstat.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/ruleutils.h"

/* Where a scan of one row can be */
typedef enum ScanPosition
{
	BEFORE_ROW,
	ON_ROW,
	AFTER_ROW
} ScanPosition;

typedef struct CallScanState
{
	CustomScanState css;		/* first */
	const IdemScanFunction *function;
	List	   *columns;		/* those of the answer that are used, from 0 */
	ExprState **args;			/* NULL: a constant */
	FmgrInfo	flinfo;
	FunctionCallInfo fcinfo;
	MemoryContext cxt;			/* of a call and its answer, but the first */
	Bitmapset  *params;			/* that the call depends on, */
	bool		params_known;	/* once there was a rescan */
	bool		called;
	bool		recalled;		/* it was called, and parameters have changed */
	bool		has_row;		/* the answer, and its columns */
	Datum		values[IDEM_SCAN_COLUMNS];
	bool		isnull[IDEM_SCAN_COLUMNS];
	ScanPosition position;
} CallScanState;

/* The functions that can be scanned, each with a node of its name */
static const IdemScanFunction *functions[IDEM_SCAN_FUNCTIONS];
static CustomScanMethods methods[IDEM_SCAN_FUNCTIONS];
static int	nfunctions = 0;

static Node *create_state(CustomScan *scan);
static void begin_scan(CustomScanState *css, EState *estate, int eflags);
static TupleTableSlot *exec_scan(CustomScanState *css);
static void end_scan(CustomScanState *css);
static void rescan(CustomScanState *css);
static void explain_scan(CustomScanState *css, List *ancestors,
						 ExplainState *es);

static const CustomExecMethods exec_methods = {
	.CustomName = IDEM_EXTENSION_NAME,
	.BeginCustomScan = begin_scan,
	.ExecCustomScan = exec_scan,
	.EndCustomScan = end_scan,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain_scan
};

/* Called when the library is loaded, once for each function */
void
idem_callscan_add(const IdemScanFunction *function)
{
	Assert(nfunctions < IDEM_SCAN_FUNCTIONS);
	functions[nfunctions] = function;
	methods[nfunctions].CustomName = function->name;
	methods[nfunctions].CreateCustomScanState = create_state;
	RegisterCustomScanMethods(&methods[nfunctions]);
	nfunctions++;
}

/* The number of the function at this address, -1 if it is none of them */
int
idem_callscan_find(PGFunction address)
{
	for (int i = 0; i < nfunctions; i++)
	{
		if (functions[i]->function == address)
			return i;
	}
	return -1;
}

/* The function with this number, and its node */
const IdemScanFunction *
idem_callscan_function(int number)
{
	return functions[number];
}

const CustomScanMethods *
idem_callscan_methods(int number)
{
	return &methods[number];
}

static Node *
create_state(CustomScan *scan)
{
	CallScanState *state = palloc0(sizeof(CallScanState));

	NodeSetTag(state, T_CustomScanState);
	state->css.methods = &exec_methods;
	state->function = functions[intVal(linitial(scan->custom_private))];
	state->columns = lsecond(scan->custom_private);
	return (Node *) state;
}

static FuncExpr *
call_of(CallScanState *state)
{
	CustomScan *scan = (CustomScan *) state->css.ss.ps.plan;

	return linitial_node(FuncExpr, scan->custom_exprs);
}

/* May the current user call the function?  As init_sexpr() in execSRF.c asks. */
static void
check_privilege(Oid function)
{
	AclResult	result = idem_function_aclcheck(function, GetUserId());

	if (result != ACLCHECK_OK)
		aclcheck_error(result, OBJECT_FUNCTION, get_func_name(function));
	InvokeFunctionExecuteHook(function);
}

/* Constants are put in their places now, other arguments compiled */
static void
prepare_args(CallScanState *state, FuncExpr *expr)
{
	int			i = 0;
	ListCell   *lc;

	state->args = palloc(list_length(expr->args) * sizeof(ExprState *));
	foreach(lc, expr->args)
	{
		NullableDatum *arg = &state->fcinfo->args[i];

		state->args[i] = NULL;
		if (IsA(lfirst(lc), Const))
		{
			Const	   *constant = lfirst(lc);

			arg->value = constant->constvalue;
			arg->isnull = constant->constisnull;
		}
		else
			state->args[i] = ExecInitExpr(lfirst(lc), &state->css.ss.ps);
		i++;
	}
}

static void
begin_scan(CustomScanState *css, EState *estate, int eflags)
{
	CallScanState *state = (CallScanState *) css;
	FuncExpr   *expr = call_of(state);
	int			nargs = list_length(expr->args);

	check_privilege(expr->funcid);

	state->flinfo.fn_addr = state->function->function;
	state->flinfo.fn_oid = expr->funcid;
	state->flinfo.fn_nargs = nargs;
	state->flinfo.fn_stats = TRACK_FUNC_PL; /* as fmgr_info() has it for C */
	state->flinfo.fn_mcxt = CurrentMemoryContext;
	state->fcinfo = palloc0(SizeForFunctionCallInfo(nargs));
	InitFunctionCallInfoData(*state->fcinfo, &state->flinfo, nargs,
							 expr->inputcollid, NULL, NULL);
	prepare_args(state, expr);
}

static void
evaluate_args(CallScanState *state, ExprContext *econtext)
{
	for (int i = 0; i < state->flinfo.fn_nargs; i++)
	{
		NullableDatum *arg = &state->fcinfo->args[i];

		if (state->args[i])
			arg->value = ExecEvalExpr(state->args[i], econtext, &arg->isnull);
	}
}

/*
 * The memory for a call and its answer.  Most scans make but one, which can
 * leave what it needs to the query's end.
 */
static MemoryContext
call_context(CallScanState *state)
{
	MemoryContext query = state->css.ss.ps.state->es_query_cxt;

	if (!state->recalled)
		return query;
	if (state->cxt == NULL)
		state->cxt = AllocSetContextCreate(query, "idem_tool call",
										   ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(state->cxt);
	return state->cxt;
}

/* Make the call */
static void
call(CallScanState *state)
{
	PgStat_FunctionCallUsage usage;
	MemoryContext oldcxt;

	oldcxt = MemoryContextSwitchTo(call_context(state));
	evaluate_args(state, state->css.ss.ps.ps_ExprContext);
	CHECK_FOR_INTERRUPTS();
	pgstat_init_function_usage(state->fcinfo, &usage);
	state->has_row = state->function->call(state->fcinfo, state->values,
										   state->isnull);
	pgstat_end_function_usage(&usage, true);
	MemoryContextSwitchTo(oldcxt);
	state->called = true;
}

/*
 * Put the columns that are used into the scan's slot, each time: who was given
 * the slot may have changed what is in it.
 */
static void
store_row(CallScanState *state, TupleTableSlot *slot)
{
	ListCell   *lc;
	int			i = 0;

	foreach(lc, state->columns)
	{
		slot->tts_values[i] = state->values[lfirst_int(lc)];
		slot->tts_isnull[i++] = state->isnull[lfirst_int(lc)];
	}
	ExecStoreVirtualTuple(slot);
}

/* Move on by one place, which may be back; the slot is empty beside the row */
static TupleTableSlot *
fetch(CallScanState *state)
{
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;

	if (!state->called)
		call(state);
	if (ScanDirectionIsForward(state->css.ss.ps.state->es_direction))
		state->position = Min(state->position + 1, AFTER_ROW);
	else
		state->position = Max(state->position - 1, BEFORE_ROW);

	ExecClearTuple(slot);
	if (state->has_row && state->position == ON_ROW)
		store_row(state, slot);
	return slot;
}

static TupleTableSlot *
exec_scan(CustomScanState *css)
{
	ExprContext *econtext = css->ss.ps.ps_ExprContext;
	ProjectionInfo *projection = css->ss.ps.ps_ProjInfo;
	TupleTableSlot *slot;

	for (;;)
	{
		ResetExprContext(econtext);
		slot = fetch((CallScanState *) css);
		if (TupIsNull(slot))
			return projection ?
				ExecClearTuple(projection->pi_state.resultslot) : slot;
		econtext->ecxt_scantuple = slot;
		if (ExecQual(css->ss.ps.qual, econtext))
			return projection ? ExecProject(projection) : slot;
		InstrCountFiltered1(css, 1);
	}
}

/* All that there is to end is the query's */
static void
end_scan(CustomScanState *css)
{
}

/* Add the executor's parameters in an expression to a set; others never change */
static bool
add_params(Node *node, void *context)
{
	Bitmapset **params = context;

	if (node == NULL)
		return false;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC)
		*params = bms_add_member(*params, ((Param *) node)->paramid);
	return expression_tree_walker(node, add_params, context);
}

/* Does the call depend on what has changed? */
static bool
has_changed(CallScanState *state)
{
	if (state->css.ss.ps.chgParam == NULL)
		return false;
	if (!state->params_known)
	{
		MemoryContext oldcxt =
			MemoryContextSwitchTo(state->css.ss.ps.state->es_query_cxt);

		add_params((Node *) call_of(state), &state->params);
		MemoryContextSwitchTo(oldcxt);
		state->params_known = true;
	}
	return bms_overlap(state->css.ss.ps.chgParam, state->params);
}

static void
rescan(CustomScanState *css)
{
	CallScanState *state = (CallScanState *) css;

	if (css->ss.ps.ps_ResultTupleSlot)
		ExecClearTuple(css->ss.ps.ps_ResultTupleSlot);
	if (state->called && has_changed(state))
	{
		state->called = false;
		state->recalled = true;
	}
	state->position = BEFORE_ROW;
}

/* EXPLAIN (VERBOSE) says what a FunctionScan would */
static void
explain_scan(CustomScanState *css, List *ancestors, ExplainState *es)
{
	List	   *context;

	if (!es->verbose)
		return;
	context = set_deparse_context_plan(es->deparse_cxt, css->ss.ps.plan,
									   ancestors);
	ExplainPropertyText("Function Call",
						deparse_expression((Node *) call_of((CallScanState *) css),
										   context, true, false),
						es);
}
