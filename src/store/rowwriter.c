/*-------------------------------------------------------------------------
 *
 * rowwriter.c
 *	  Write one row of the table with the executor's own pieces.
 *
 * Every index, constraint, default, generated column and trigger that an
 * administrator adds works as under INSERT and UPDATE, row and statement
 * level, in the order of nodeModifyTable.c; what is saved is the parser, the
 * planner and a portal.
 *
 * What ExecInsert() and ExecUpdate() do beyond this, of 15 to 18, is left out
 * for a reason: privileges, row security and views' check options, since the
 * callers have judged the row's owner; routing to partitions, since this one
 * table is meant, as if it were named in the statement (its bound is checked);
 * INSTEAD OF triggers and foreign tables, since it is a table; RETURNING;
 * EvalPlanQual, since a row that has changed is looked at and judged anew; and
 * the check for a conflict before the insertion, since we have looked.  Of the
 * steps before them, rules are refused by layout.c, and what we write into
 * GENERATED ALWAYS AS IDENTITY is as OVERRIDING SYSTEM VALUE has it.
 *
 * Setting up an executor state costs about as much as the write itself, so
 * the state is kept for the session as long as the table has the plain shape
 * that the extension gave it.  A state in use belongs to the caller's memory
 * context, a kept one to none: an error in between, or a nested call, finds
 * nothing kept and builds its own.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

struct IdemWriter
{
	MemoryContext cxt;			/* holds all of this */
	IdemStore  *store;			/* of the current call, like the key */
	const IdemKey *key;
	int64		token;			/* of the row that was written, 0 if none */
	EState	   *estate;
	ResultRelInfo rri;
	EPQState	epq;			/* never used, but triggers want one */
	TupleTableSlot *slot;		/* the row to write */
	TupleTableSlot *stored;		/* ... as a tuple, lest each step makes one */
	List	   *arbiters;		/* the indexes that judge conflicts */
	Bitmapset  *changing_columns;	/* what the two kinds of update assign, */
	Bitmapset  *all_columns;	/* for UPDATE OF triggers and the like */
	bool		keepable;		/* the table has its plain shape */
	uint64		generation;		/* what "generation" was when built */
};

/*
 * The kept state, what it was made from, and a count of the times that it
 * became outdated
 */
static IdemWriter *kept_writer = NULL;
static Oid	writer_table = InvalidOid;
static Oid	writer_pkey = InvalidOid;
static uint64 generation = 0;

/* What is kept, and what is in use, must not be kept on */
static void
forget_writer(void)
{
	IdemWriter *writer = kept_writer;

	generation++;
	kept_writer = NULL;
	if (writer)
		MemoryContextDelete(writer->cxt);
}

/* The table or its index changed (0: everything) */
static void
writer_inval_callback(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || relid == writer_table || relid == writer_pkey)
		forget_writer();
}

/* Called once per backend, when the library is loaded */
void
idem_writer_init(void)
{
	CacheRegisterRelcacheCallback(writer_inval_callback, (Datum) 0);
}

static IdemWriter *
build_writer(IdemStore *store)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "idem_tool row writer",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext oldcxt = MemoryContextSwitchTo(cxt);
	IdemWriter *writer = palloc0(sizeof(IdemWriter));

	writer->cxt = cxt;
	writer_table = RelationGetRelid(store->rel);
	writer_pkey = store->pkey_oid;
	writer->generation = generation;
	writer->estate = CreateExecutorState();
	idem_init_range_table(writer->estate, store->rel);
	writer->changing_columns = idem_changing_columns();
	writer->all_columns = idem_all_columns(store->rel);
	InitResultRelInfo(&writer->rri, store->rel, 1, NULL, 0);
	ExecOpenIndices(&writer->rri, false);

	/* makes ExecGetTriggerResultRel() find it instead of opening another */
	writer->estate->es_opened_result_relations =
		list_make1(&writer->rri);
	idem_epq_init(&writer->epq, writer->estate);
	writer->slot =
		MakeSingleTupleTableSlot(CreateTupleDescCopy(RelationGetDescr(store->rel)),
								 &TTSOpsVirtual);
	writer->stored =
		MakeSingleTupleTableSlot(writer->slot->tts_tupleDescriptor,
								 &TTSOpsHeapTuple);
	writer->stored->tts_tableOid = RelationGetRelid(store->rel);
	writer->slot->tts_tableOid = RelationGetRelid(store->rel);
	writer->arbiters = idem_arbiters(writer->rri.ri_IndexRelationDescs,
									  writer->rri.ri_NumIndices);
	writer->keepable = idem_has_plain_shape(store->rel, writer->rri.ri_NumIndices);
	MemoryContextSwitchTo(oldcxt);

	/* a kept state borrows the index from whoever uses it */
	if (writer->keepable)
		ExecCloseIndices(&writer->rri);
	return writer;
}

/* Take the kept state into use for this call */
static IdemWriter *
reuse_writer(IdemStore *store)
{
	IdemWriter *writer = kept_writer;

	kept_writer = NULL;
	MemoryContextSetParent(writer->cxt, CurrentMemoryContext);
	writer->rri.ri_RelationDesc = store->rel;
	return writer;
}

/* Get ready to write one row */
IdemWriter *
idem_writer_open(IdemStore *store, const IdemKey *key)
{
	IdemWriter *writer;

	idem_store_lock_for_write(store);
	idem_note_storage(store->rel);
	if (writer_table != RelationGetRelid(store->rel))
		forget_writer();
	if (kept_writer == NULL)
		idem_store_lock_indexes(store);

	writer = kept_writer ? reuse_writer(store) : build_writer(store);
	writer->store = store;
	writer->key = key;
	writer->token = 0;
	writer->estate->es_snapshot = GetActiveSnapshot();
	writer->estate->es_output_cid = GetCurrentCommandId(true);
	ExecClearTuple(writer->slot);
	if (writer->rri.ri_TrigDesc)
	{
		idem_check_triggers(store->rel);
		AfterTriggerBeginQuery();
	}
	return writer;
}

TupleTableSlot *
idem_writer_slot(IdemWriter *writer)
{
	return writer->slot;
}

/* Fire what waited for the end of the statement, and let go of everything */
void
idem_writer_close(IdemWriter *writer)
{
	if (writer->rri.ri_TrigDesc)
		AfterTriggerEndQuery(writer->estate);
	ExecClearTuple(writer->slot);
	ExecClearTuple(writer->stored);

	/* our next look, and the caller's next statement, must see the row */
	CommandCounterIncrement();
	if (writer->rri.ri_TrigDesc && writer->token != 0)
		idem_check_kept(writer->store, writer->key, writer->token);

	if (writer->keepable && writer->generation == generation &&
		kept_writer == NULL)
	{
		ResetPerTupleExprContext(writer->estate);
		MemoryContextSetParent(writer->cxt, TopMemoryContext);
		kept_writer = writer;
		return;
	}

	if (!writer->keepable)
		ExecCloseResultRelations(writer->estate);	/* and what triggers opened */
	ExecResetTupleTable(writer->estate->es_tupleTable, false);
	FreeExecutorState(writer->estate);
	MemoryContextDelete(writer->cxt);
}

static void
report_veto(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("a trigger on table \"%s\" suppressed the write",
					RelationGetRelationName(rel)),
			 errhint("Let the trigger raise an error or return the row.")));
}

/* Generated columns and constraints, after the BEFORE triggers */
static void
complete_row(IdemWriter *writer, CmdType cmd)
{
	Relation	rel = writer->rri.ri_RelationDesc;

	/* under another key it would be somebody else's row */
	if (writer->rri.ri_TrigDesc && !idem_row_has_key(writer->slot, writer->key))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a trigger on table \"%s\" changed the key",
						RelationGetRelationName(rel))));

	/* a trigger's row comes without it, generated columns may use it */
	writer->slot->tts_tableOid = RelationGetRelid(rel);
	if (rel->rd_att->constr && rel->rd_att->constr->has_generated_stored)
		ExecComputeStoredGenerated(&writer->rri, writer->estate,
								   writer->slot, cmd);
	if (rel->rd_att->constr && !writer->keepable)
		ExecConstraints(&writer->rri, writer->slot, writer->estate);
	if (rel->rd_rel->relispartition)
		ExecPartitionCheck(&writer->rri, writer->slot, writer->estate, true);
}

/* Make the index entries of the row in the slot */
static List *
insert_index_entries(IdemWriter *writer, bool update, bool *conflict,
					 bool only_summarizing)
{
	if (writer->keepable)
		writer->rri.ri_IndexRelationDescs[0] = idem_store_pkey(writer->store);
	return idem_insert_index_tuples(&writer->rri, writer->slot,
									writer->estate, update, conflict != NULL,
									conflict,
									conflict ? writer->arbiters : NIL,
									only_summarizing);
}

/* The row in the slot was stored */
static IdemWriteResult
note_written(IdemWriter *writer)
{
	bool		isnull;

	writer->token = DatumGetInt64(slot_getattr(writer->slot, Anum_idem_token,
											   &isnull));
	return IDEM_WRITTEN;
}

/*
 * Store the new row unless an arbiter has a conflict.
 *
 * Nobody but plain SQL can have inserted the key since we looked, for we hold
 * the key's lock.  A row that was deleted again would do in that case, and
 * costs less; but until our transaction ends it stands in the way of everybody
 * else, and logical decoding would tell subscribers to insert and delete what
 * is the rival's row there.  A speculative one leaves no trace.
 */
static bool
insert_speculatively(IdemWriter *writer, List **recheck)
{
	TransactionId xid = GetCurrentTransactionId();
	uint32		spec_token = SpeculativeInsertionLockAcquire(xid);
	bool		conflict = false;

	ExecCopySlot(writer->stored, writer->slot);
	table_tuple_insert_speculative(writer->rri.ri_RelationDesc,
								   writer->stored,
								   writer->estate->es_output_cid, 0, NULL,
								   spec_token);
	writer->slot->tts_tid = writer->stored->tts_tid;
	*recheck = insert_index_entries(writer, false, &conflict, false);
	table_tuple_complete_speculative(writer->rri.ri_RelationDesc,
									 writer->stored, spec_token, !conflict);
	SpeculativeInsertionLockRelease(xid);
	return !conflict;
}

/*
 * Insert the row in the slot, of which the extension's own columns are set.
 * IDEM_CONFLICT: the key is there already, and nothing was stored.  On
 * success the slot has the row as stored, whatever triggers made of it.
 */
IdemWriteResult
idem_writer_insert(IdemWriter *writer)
{
	ResultRelInfo *rri = &writer->rri;
	EState	   *estate = writer->estate;
	TransitionCaptureState *transition;
	List	   *recheck;

	memset(writer->slot->tts_isnull + Natts_idem, true,
		   RelationGetNumberOfAttributes(rri->ri_RelationDesc) - Natts_idem);
	idem_row_default_columns(writer->slot, rri->ri_RelationDesc, estate);
	ExecStoreVirtualTuple(writer->slot);

	transition = MakeTransitionCaptureState(rri->ri_TrigDesc,
											RelationGetRelid(rri->ri_RelationDesc),
											CMD_INSERT);
	ExecBSInsertTriggers(estate, rri);
	if (rri->ri_TrigDesc && rri->ri_TrigDesc->trig_insert_before_row &&
		!ExecBRInsertTriggers(estate, rri, writer->slot))
		report_veto(rri->ri_RelationDesc);

	complete_row(writer, CMD_INSERT);
	if (!insert_speculatively(writer, &recheck))
		return IDEM_CONFLICT;

	ExecARInsertTriggers(estate, rri, writer->slot, recheck, transition);
	ExecASInsertTriggers(estate, rri, transition);
	return note_written(writer);
}

/* What the table access method said of a row that we want to write */
static IdemWriteResult
write_result(TM_Result result)
{
	switch (result)
	{
		case TM_Ok:
			return IDEM_WRITTEN;
		case TM_Updated:
		case TM_Deleted:
			return IDEM_CONFLICT;
		case TM_BeingModified:
		case TM_WouldBlock:
			return IDEM_BUSY;
		case TM_SelfModified:
			/* as ExecUpdate(): a trigger of ours changed the row itself */
			ereport(ERROR,
					(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					 errmsg("tuple to be updated was already modified by an operation triggered by the current command"),
					 errhint("Consider using an AFTER trigger instead of a BEFORE trigger to propagate changes to other rows.")));
			break;
		default:
			elog(ERROR, "unexpected status of a row to be written: %u", result);
			break;
	}
	return IDEM_BUSY;			/* keep compiler quiet */
}

/*
 * Lock the row for an update by us.  Without "wait" a row that somebody else
 * holds, by an uncommitted change or a row lock, is IDEM_BUSY.
 */
IdemWriteResult
idem_writer_lock(IdemWriter *writer, ItemPointer tid, bool wait)
{
	Relation	rel = writer->rri.ri_RelationDesc;
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TM_FailureData tmfd;
	TM_Result	result;

	result = table_tuple_lock(rel, tid, writer->estate->es_snapshot, slot,
							  writer->estate->es_output_cid,
							  LockTupleNoKeyExclusive,
							  wait ? LockWaitBlock : LockWaitSkip, 0, &tmfd);
	ExecDropSingleTupleTableSlot(slot);
	return write_result(result);
}

/*
 * Replace the row at "tid" by the one in the slot, of which all columns are
 * set; "anew" if a key past its memory begins again.  Waits for whoever holds
 * the row; IDEM_CONFLICT if it changed.
 */
IdemWriteResult
idem_writer_update(IdemWriter *writer, ItemPointer tid, bool anew)
{
	ResultRelInfo *rri = &writer->rri;
	EState	   *estate = writer->estate;
	Relation	rel = rri->ri_RelationDesc;
	TransitionCaptureState *transition;
	IdemUpdateIndexes update_indexes;
	LockTupleMode lockmode;
	TM_FailureData tmfd;
	IdemWriteResult result;
	List	   *recheck = NIL;

	CheckCmdReplicaIdentity(rel, CMD_UPDATE);
	if (anew)
		idem_row_default_columns(writer->slot, rel, estate);
	ExecStoreVirtualTuple(writer->slot);
	idem_set_updated_columns(estate, anew ? writer->all_columns :
							 writer->changing_columns);

	/*
	 * The triggers' own way of locking the row raises 40001 above READ
	 * COMMITTED when the row has changed: be there first.
	 */
	if (rri->ri_TrigDesc)
	{
		result = idem_writer_lock(writer, tid, true);
		if (result != IDEM_WRITTEN)
			return result;
	}

	transition = MakeTransitionCaptureState(rri->ri_TrigDesc,
											RelationGetRelid(rel), CMD_UPDATE);
	ExecBSUpdateTriggers(estate, rri);
	if (rri->ri_TrigDesc && rri->ri_TrigDesc->trig_update_before_row &&
		!idem_br_update_triggers(estate, &writer->epq, rri, tid, writer->slot))
		report_veto(rel);

	complete_row(writer, CMD_UPDATE);
	result = write_result(idem_tuple_update(rel, tid, writer->slot,
											estate->es_output_cid,
											estate->es_snapshot, &tmfd,
											&lockmode, &update_indexes));
	if (result != IDEM_WRITTEN)
		return result;
	if (IDEM_NEEDS_INDEXES(update_indexes))
		recheck = insert_index_entries(writer, true, NULL,
									   IDEM_ONLY_SUMMARIZING(update_indexes));
	ExecARUpdateTriggers(estate, rri, NULL, NULL, tid, NULL, writer->slot,
						 recheck, transition, false);
	ExecASUpdateTriggers(estate, rri, transition);
	return note_written(writer);
}
