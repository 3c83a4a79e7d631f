/*-------------------------------------------------------------------------
 *
 * callplan.c
 *	  Plan a call in FROM: our own scan node in place of a FunctionScan.
 *
 * A FunctionScan forms a row of the answer, stores it in a tuplestore, and
 * takes it apart again: a fifth of the instructions of a call.  callscan.c puts
 * the columns straight into the slot of the scan.
 *
 * This needs the library loaded when the statement is planned.  Where it was
 * not, and wherever the node would not do the same as a FunctionScan, that is
 * what remains: the function was given a SET clause, SECURITY DEFINER or STRICT,
 * or its result type is not as we made it; other functions in the same ROWS FROM,
 * WITH ORDINALITY; the row is asked for as a whole, which includes whatever
 * EvalPlanQual would have to repeat.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "access/sysattr.h"
#include "access/transam.h"
#include "funcapi.h"
#include "nodes/extensible.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "parser/parsetree.h"

static set_rel_pathlist_hook_type next_hook;

static Plan *plan_path(PlannerInfo *root, RelOptInfo *rel, CustomPath *path,
					   List *tlist, List *clauses, List *plans);

static const CustomPathMethods path_methods = {
	.CustomName = IDEM_EXTENSION_NAME,
	.PlanCustomPath = plan_path
};

/* Are the result's columns those that the function makes? */
static bool
has_columns(FuncExpr *expr, const IdemScanFunction *function)
{
	TupleDesc	desc;

	(void) get_expr_result_type((Node *) expr, NULL, &desc);
	if (desc == NULL || desc->natts != function->natts)
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		if (TupleDescAttr(desc, i)->atttypid != function->types[i])
			return false;
	}
	return true;
}

/*
 * The number of the function that is called, -1 if it is none of ours.  Where
 * something comes between the call and our code (a SET clause, SECURITY
 * DEFINER, a hook), the address is not ours.
 */
static int
find_function(FuncExpr *expr)
{
	const IdemScanFunction *function;
	FmgrInfo	flinfo;
	int			number;

	if (expr->funcid < FirstNormalObjectId)
		return -1;
	fmgr_info(expr->funcid, &flinfo);
	number = idem_callscan_find(flinfo.fn_addr);
	if (number < 0 || flinfo.fn_strict)
		return -1;
	function = idem_callscan_function(number);
	return list_length(expr->args) == function->nargs &&
		has_columns(expr, function) ? number : -1;
}

/* The call, if it is all that there is to this entry of FROM */
static FuncExpr *
lone_call(RangeTblEntry *rte)
{
	RangeTblFunction *function;

	if (rte->rtekind != RTE_FUNCTION || rte->funcordinality ||
		list_length(rte->functions) != 1)
		return NULL;
	function = linitial_node(RangeTblFunction, rte->functions);
	if (!IsA(function->funcexpr, FuncExpr) || function->funccolnames != NIL)
		return NULL;
	return (FuncExpr *) function->funcexpr;
}

/* Columns of the relation that are used above it, and by its own conditions */
static Bitmapset *
used_columns(RelOptInfo *rel, List *clauses)
{
	Bitmapset  *columns = NULL;

	pull_varattnos((Node *) rel->reltarget->exprs, rel->relid, &columns);
	pull_varattnos((Node *) clauses, rel->relid, &columns);
	return columns;
}

/* Is the row itself asked for, or a system column? */
static bool
uses_row(RelOptInfo *rel)
{
	List	   *clauses = extract_actual_clauses(rel->baserestrictinfo, false);
	int			first = bms_next_member(used_columns(rel, clauses), -1);

	return first >= 0 && first <= -FirstLowInvalidHeapAttributeNumber;
}

/*
 * A call is made for each row that it is laterally joined to, also if the rows
 * are equal: two must not both be told "reserved".  Memoize, which would answer
 * the second one for us, is not planned over a volatile target list, but does
 * not ask what kind of function the relation itself calls.
 */
static void
forbid_memoize(RelOptInfo *rel, RangeTblEntry *rte)
{
	Node	   *calls = rte->rtekind == RTE_FUNCTION ?
		(Node *) rte->functions : (Node *) rte->subquery;

	if (rel->lateral_vars != NIL && contain_volatile_functions(calls))
		rel->reltarget->has_volatile_expr = VOLATILITY_VOLATILE;
}

/* Plan the scan where it can stand for the one path that there is */
static void
offer_scan(PlannerInfo *root, RelOptInfo *rel, Index rti, RangeTblEntry *rte)
{
	FuncExpr   *expr = lone_call(rte);
	Path	   *path;
	CustomPath *scan;
	int			number;

	if (next_hook)
		next_hook(root, rel, rti, rte);
	forbid_memoize(rel, rte);
	if (expr == NULL || !idem_enable_callscan ||
		list_length(rel->pathlist) != 1)
		return;
	path = linitial(rel->pathlist);
	if (path->pathtype != T_FunctionScan || contain_subplans((Node *) expr))
		return;
	number = find_function(expr);
	if (number < 0 || uses_row(rel))
		return;

	/* costs are a FunctionScan's, for plans to look as they would with one */
	scan = makeNode(CustomPath);
	scan->path = *path;
	NodeSetTag(scan, T_CustomPath);
	scan->path.pathtype = T_CustomScan;
	scan->flags = CUSTOMPATH_SUPPORT_PROJECTION |
		CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
	scan->custom_private = list_make1(makeInteger(number));
	scan->methods = &path_methods;
	rel->pathlist = list_make1(scan);
}

/* Describe what the scan returns: the columns that are used, in order */
static List *
scan_columns(RelOptInfo *rel, FuncExpr *expr, List *clauses)
{
	Bitmapset  *used = used_columns(rel, clauses);
	TupleDesc	desc;
	List	   *tlist = NIL;
	int			i = -1;

	(void) get_expr_result_type((Node *) expr, NULL, &desc);
	while ((i = bms_next_member(used, i)) >= 0)
	{
		AttrNumber	attno = i + FirstLowInvalidHeapAttributeNumber;
		Form_pg_attribute att = TupleDescAttr(desc, attno - 1);
		Var		   *var = makeVar(rel->relid, attno, att->atttypid,
								  att->atttypmod, att->attcollation, 0);

		tlist = lappend(tlist, makeTargetEntry((Expr *) var,
											   list_length(tlist) + 1, NULL,
											   false));
	}
	return tlist;
}

/*
 * Make the plan of a path.  The call is among its expressions as a whole: so
 * it gets its parameters, and the plan ends with whatever happens to the
 * function.
 */
static Plan *
plan_path(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist,
		  List *clauses, List *plans)
{
	FuncExpr   *expr = lone_call(planner_rt_fetch(rel->relid, root));
	CustomScan *scan = makeNode(CustomScan);
	List	   *columns = NIL;
	ListCell   *lc;

	clauses = extract_actual_clauses(clauses, false);
	scan->scan.plan.targetlist = tlist;
	scan->scan.plan.qual = clauses;
	scan->flags = path->flags;
	scan->custom_exprs = list_make1(expr);
	scan->custom_scan_tlist = scan_columns(rel, expr, clauses);
	foreach(lc, scan->custom_scan_tlist)
	{
		Var		   *var = (Var *) lfirst_node(TargetEntry, lc)->expr;

		columns = lappend_int(columns, var->varattno - 1);
	}
	scan->custom_private = list_make2(linitial(path->custom_private), columns);
	scan->methods =
		idem_callscan_methods(intVal(linitial(path->custom_private)));
	return &scan->scan.plan;
}

/* Called once per backend, when the library is loaded */
void
idem_callplan_init(void)
{
	next_hook = set_rel_pathlist_hook;
	set_rel_pathlist_hook = offer_scan;
}
