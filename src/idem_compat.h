/*-------------------------------------------------------------------------
 *
 * idem_compat.h
 *	  What differs between PostgreSQL 15 and 19, and nothing else.
 *
 * The only file of the project that tests PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "idem_tool needs PostgreSQL 15 or later"
#endif

#include "access/heapam.h"
#include "access/tableam.h"
#include "catalog/pg_proc.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "parser/parse_relation.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* varlena macros moved out of postgres.h in 16 */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* What EXPLAIN offers to others moved out of explain.h in 18 */
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#else
#include "commands/explain.h"
#endif

/* pg_noreturn, before the declaration, replaced pg_attribute_noreturn() in 18 */
#if PG_VERSION_NUM < 180000
#define pg_noreturn		pg_attribute_noreturn()
#endif

/* index_beginscan() takes an instrumentation target since 18, flags since 19 */
#if PG_VERSION_NUM >= 190000
#define idem_index_beginscan(rel, idx, snap, nkeys) \
	index_beginscan(rel, idx, snap, NULL, nkeys, 0, 0)
#elif PG_VERSION_NUM >= 180000
#define idem_index_beginscan(rel, idx, snap, nkeys) \
	index_beginscan(rel, idx, snap, NULL, nkeys, 0)
#else
#define idem_index_beginscan(rel, idx, snap, nkeys) \
	index_beginscan(rel, idx, snap, nkeys, 0)
#endif

/* So do scans of TID ranges, and updates and deletions of rows */
#if PG_VERSION_NUM >= 190000
#define idem_beginscan_tidrange(rel, snap, from, to) \
	table_beginscan_tidrange(rel, snap, from, to, 0)
#define idem_tuple_update(rel, tid, slot, cid, snap, tmfd, lockmode, indexes) \
	table_tuple_update(rel, tid, slot, cid, 0, snap, InvalidSnapshot, true, \
					   tmfd, lockmode, indexes)
#define idem_tuple_delete_nowait(rel, tid, cid, snap, tmfd) \
	table_tuple_delete(rel, tid, cid, 0, snap, InvalidSnapshot, false, tmfd)
#else
#define idem_beginscan_tidrange(rel, snap, from, to) \
	table_beginscan_tidrange(rel, snap, from, to)
#define idem_tuple_update(rel, tid, slot, cid, snap, tmfd, lockmode, indexes) \
	table_tuple_update(rel, tid, slot, cid, snap, InvalidSnapshot, true, \
					   tmfd, lockmode, indexes)
#define idem_tuple_delete_nowait(rel, tid, cid, snap, tmfd) \
	table_tuple_delete(rel, tid, cid, snap, InvalidSnapshot, false, tmfd, false)
#endif

/* RelationGetPrimaryKeyIndex() was told about deferrable keys in 18 */
#if PG_VERSION_NUM >= 180000
#define idem_primary_key(rel)	RelationGetPrimaryKeyIndex(rel, false)
#else
#define idem_primary_key(rel)	RelationGetPrimaryKeyIndex(rel)
#endif

/* Files of a relation are "locators" since 16 */
#if PG_VERSION_NUM >= 160000
#define idem_has_new_storage(rel) \
	((rel)->rd_firstRelfilelocatorSubid != InvalidSubTransactionId)
#else
#define idem_has_new_storage(rel) \
	((rel)->rd_firstRelfilenodeSubid != InvalidSubTransactionId)
#endif

/* Pruning leaves the page of the visibility map to its caller since 19 */
static inline void
idem_prune_page(Relation rel, Buffer buffer)
{
#if PG_VERSION_NUM >= 190000
	Buffer		vmbuffer = InvalidBuffer;

	heap_page_prune_opt(rel, buffer, &vmbuffer, false);
	if (BufferIsValid(vmbuffer))
		ReleaseBuffer(vmbuffer);
#else
	heap_page_prune_opt(rel, buffer);
#endif
}

/* One function checks privileges on all kinds of objects since 16 */
#if PG_VERSION_NUM >= 160000
#define idem_function_aclcheck(function, role) \
	object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE)
#else
#define idem_function_aclcheck(function, role) \
	pg_proc_aclcheck(function, role, ACL_EXECUTE)
#endif

/*
 * May a role that is no superuser act as another one?  Membership was enough
 * until 16 gave it the options INHERIT and SET.
 */
#if PG_VERSION_NUM >= 160000
#define idem_acts_for(user, role) \
	(has_privs_of_role(user, role) || member_can_set_role(user, role))
#else
#define idem_acts_for(user, role)	is_member_of_role(user, role)
#endif

/*
 * Has a column no NULL?  Since 18 it can be NOT NULL by a constraint that was
 * never validated.
 */
#if PG_VERSION_NUM >= 180000
#define idem_has_no_null(desc, i) \
	(TupleDescCompactAttr(desc, i)->attnullability == ATTNULLABLE_VALID)
#else
#define idem_has_no_null(desc, i)	(TupleDescAttr(desc, i)->attnotnull)
#endif

/* What table_tuple_update() says of the indexes became an enum in 16 */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes IdemUpdateIndexes;
#define IDEM_NEEDS_INDEXES(u)	((u) != TU_None)
#define IDEM_ONLY_SUMMARIZING(u)	((u) == TU_Summarizing)
#else
typedef bool IdemUpdateIndexes;
#define IDEM_NEEDS_INDEXES(u)	(u)
#define IDEM_ONLY_SUMMARIZING(u)	false
#endif

/* ExecInsertIndexTuples() has known summarizing indexes since 16, flags since 19 */
static inline List *
idem_insert_index_tuples(ResultRelInfo *rri, TupleTableSlot *slot,
						 EState *estate, bool update, bool nodup,
						 bool *conflict, List *arbiters, bool summarizing)
{
#if PG_VERSION_NUM >= 190000
	return ExecInsertIndexTuples(rri, estate,
								 (update ? EIIT_IS_UPDATE : 0) |
								 (nodup ? EIIT_NO_DUPE_ERROR : 0) |
								 (summarizing ? EIIT_ONLY_SUMMARIZING : 0),
								 slot, arbiters, conflict);
#elif PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(rri, slot, estate, update, nodup, conflict,
								 arbiters, summarizing);
#else
	return ExecInsertIndexTuples(rri, slot, estate, update, nodup, conflict,
								 arbiters);
#endif
}

/* BEFORE ROW UPDATE triggers report how the row changed since 16 */
#if PG_VERSION_NUM >= 180000
#define idem_br_update_triggers(estate, epq, rri, tid, slot) \
	ExecBRUpdateTriggers(estate, epq, rri, tid, NULL, slot, NULL, NULL, false)
#elif PG_VERSION_NUM >= 160000
#define idem_br_update_triggers(estate, epq, rri, tid, slot) \
	ExecBRUpdateTriggers(estate, epq, rri, tid, NULL, slot, NULL, NULL)
#else
#define idem_br_update_triggers(estate, epq, rri, tid, slot) \
	ExecBRUpdateTriggers(estate, epq, rri, tid, NULL, slot, NULL)
#endif

/* EvalPlanQualInit() got a list of result relations in 16 */
#if PG_VERSION_NUM >= 160000
#define idem_epq_init(epq, estate)	EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL)
#else
#define idem_epq_init(epq, estate)	EvalPlanQualInit(epq, estate, NULL, NIL, -1)
#endif

/* Backends have been found by the numbers of their PGPROCs since 17 */
#if PG_VERSION_NUM >= 170000
#include "storage/procarray.h"
#define idem_vxid_proc(vxid)	ProcNumberGetProc((vxid).procNumber)
#else
#include "storage/sinvaladt.h"
#define idem_vxid_proc(vxid)	BackendIdGetProc((vxid).backendId)
#endif

/* Extensions' wait events have had names since 17 */
#if PG_VERSION_NUM >= 170000
#define idem_wait_event(name)	WaitEventExtensionNew(name)
#else
#define idem_wait_event(name)	PG_WAIT_EXTENSION
#endif

/* Time-outs that would end a worker: 17 added one */
#if PG_VERSION_NUM >= 170000
#define IDEM_NEWER_TIMEOUTS	{"transaction_timeout", "0"},
#else
#define IDEM_NEWER_TIMEOUTS
#endif

/*
 * Make "rel" the one range table entry of an executor state.  In 18 the
 * executor wants to know which relations survived pruning.
 */
static inline void
idem_init_range_table(EState *estate, Relation rel)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
#if PG_VERSION_NUM >= 160000
	{
		List	   *perminfos = NIL;

		(void) addRTEPermissionInfo(&perminfos, rte);
#if PG_VERSION_NUM >= 180000
		ExecInitRangeTable(estate, list_make1(rte), perminfos,
						   bms_make_singleton(1));
#else
		ExecInitRangeTable(estate, list_make1(rte), perminfos);
#endif
	}
#else
	ExecInitRangeTable(estate, list_make1(rte));
#endif
}

/*
 * Say which of its columns an update assigns: that moved to RTEPermissionInfo
 * in 16.
 */
static inline void
idem_set_updated_columns(EState *estate, Bitmapset *columns)
{
#if PG_VERSION_NUM >= 160000
	linitial_node(RTEPermissionInfo, estate->es_rteperminfos)->updatedCols =
		columns;
#else
	exec_rt_fetch(1, estate)->updatedCols = columns;
#endif
}

#endif							/* IDEM_COMPAT_H */
