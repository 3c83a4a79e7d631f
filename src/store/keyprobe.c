/*-------------------------------------------------------------------------
 *
 * keyprobe.c
 *	  Look at a key as a unique index does: the latest state, not a snapshot.
 *
 * A dirty snapshot shows the latest committed version and what uncommitted
 * transactions are about to make of it, at every isolation level, takes no
 * SIREAD locks and writes nothing (check_exclusion_or_unique_constraint() in
 * execIndexing.c looks the same way).  Row locks it does not show; a writer
 * meets them when it locks the row.
 *
 * What is found is there.  "Not found" may be wrong: when a rival moves the row
 * to another place that its index entry comes after we have read the index
 * page, and commits before we fetch the old place, both versions are missed.
 * But then we have met the index entry of the old one: entries are taken away
 * only after their successors were made, and where a key's entries are on two
 * pages, not from under the caller's snapshot.  So where we met no entry there
 * is no row; otherwise a look that cannot miss confirms the absence.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Start a scan of the primary key for this key */
static IndexScanDesc
begin_scan(IdemStore *store, const IdemKey *key, Snapshot snapshot)
{
	static ScanKeyData template[2];
	ScanKeyData skeys[2];
	IndexScanDesc scan;

	if (template[0].sk_attno == 0)
	{
		for (int i = 0; i < 2; i++)
			ScanKeyEntryInitialize(&template[i], 0, i + 1,
								   BTEqualStrategyNumber, InvalidOid,
								   C_COLLATION_OID, F_TEXTEQ, (Datum) 0);
	}
	memcpy(skeys, template, sizeof(skeys));
	skeys[0].sk_argument = PointerGetDatum(key->key);
	skeys[1].sk_argument = PointerGetDatum(key->scope);

	scan = idem_index_beginscan(store->rel, idem_store_pkey(store), snapshot, 2);
	index_rescan(scan, skeys, 2, NULL, 0);
	return scan;
}

/*
 * Is room scarce on the page of the row that was fetched, where there may be
 * dead versions to take away?  Scarce is what a version like this one and "room"
 * bytes more would not fit in, but nothing from which heap_page_prune_opt() would
 * turn away.  To look without a lock is good enough, for it as for us.
 */
static bool
room_is_scarce(Relation rel, TupleTableSlot *slot, Size room)
{
	BufferHeapTupleTableSlot *fetched = (BufferHeapTupleTableSlot *) slot;
	Size		least = BLCKSZ / 10;
	Size		most = RelationGetTargetPageFreeSpace(rel,
													  HEAP_DEFAULT_FILLFACTOR);
	Page		page;

	if (!TTS_IS_BUFFERTUPLE(slot) || !BufferIsValid(fetched->buffer))
		return false;
	page = BufferGetPage(fetched->buffer);
	room += fetched->base.tuple->t_len;
	return TransactionIdIsValid(((PageHeader) page)->pd_prune_xid) &&
		PageGetHeapFreeSpace(page) < Max(least, Min(most, room));
}

/*
 * Take dead versions off the page, as an index scan does before it looks there:
 * nobody else comes by while a key is found by its hint, and each version of a
 * lease that is extended over and over would stay until VACUUM.
 */
static void
tidy_page(Relation rel, BlockNumber block)
{
	Buffer		buffer = ReadBuffer(rel, block);

	idem_prune_page(rel, buffer);
	ReleaseBuffer(buffer);
}

/* Fetch the version at "tid" as a dirty snapshot shows it */
static bool
fetch_at(IdemStore *store, ItemPointer tid, Snapshot dirty,
		 TupleTableSlot *slot, Size room)
{
	if (!table_tuple_fetch_row_version(store->rel, tid, dirty, slot))
		return false;
	if (!room_is_scarce(store->rel, slot, room))
		return true;

	/* nobody may look at the page meanwhile, nor may we */
	ExecClearTuple(slot);
	tidy_page(store->rel, ItemPointerGetBlockNumber(tid));
	return table_tuple_fetch_row_version(store->rel, tid, dirty, slot);
}

/*
 * Look where the row was seen last.  True if it is there and nobody else has
 * a change of it under way: that is then all there is to know of the key.
 */
static bool
look_at_hint(IdemLook *look, IdemStore *store, const IdemKey *key)
{
	ItemPointerData tid;
	SnapshotData dirty;

	/* VACUUM may have cut the table's end off since */
	if (!idem_hint_find(key, &tid) ||
		ItemPointerGetBlockNumber(&tid) >= RelationGetNumberOfBlocks(store->rel))
		return false;

	InitDirtySnapshot(dirty);
	if (!fetch_at(store, &tid, &dirty, look->row.slot, look->room))
		return false;
	look->found = !TransactionIdIsValid(dirty.xmin) &&
		!TransactionIdIsValid(dirty.xmax) &&
		idem_row_has_key(look->row.slot, key);
	look->rival = InvalidTransactionId;
	look->rival_writes = false;
	look->rival_has_token = false;
	return look->found;
}

/*
 * Fetch the next version that the scan's snapshot shows; index_getnext_slot(),
 * but for noting whether there was any index entry at all.
 */
static bool
next_version(IndexScanDesc scan, TupleTableSlot *slot, bool *met_entry)
{
	while (scan->xs_heap_continue ||
		   index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		*met_entry = true;
		if (index_fetch_heap(scan, slot))
			return true;
	}
	return false;
}

/* Note what is to be known of a version that is not committed */
static void
note_rival(IdemLook *look, TransactionId xid, TupleTableSlot *slot)
{
	bool		isnull;

	look->rival = xid;
	look->rival_writes |= idem_row_status(slot) != IDEM_EXPIRED;
	look->rival_has_token |= look->token != 0 && look->token ==
		DatumGetInt64(slot_getattr(slot, Anum_idem_token, &isnull));
}

/*
 * One dirty look.  On return the slot holds the committed version (or our
 * own), if there is one.  Returns whether the key has an index entry.
 */
static bool
look_by_index(IdemLook *look, IdemStore *store, const IdemKey *key)
{
	TupleTableSlot *slot = look->row.slot;
	TupleTableSlot *rivals = NULL;
	SnapshotData dirty;
	IndexScanDesc scan;
	bool		met_entry = false;

	InitDirtySnapshot(dirty);
	look->found = false;
	look->rival = InvalidTransactionId;
	look->rival_writes = false;
	look->rival_has_token = false;

	scan = begin_scan(store, key, &dirty);
	while (next_version(scan, look->found ? rivals : slot, &met_entry))
	{
		/*
		 * An uncommitted version comes before or after the committed one, as
		 * their places on disk have it: go on either way.
		 */
		if (TransactionIdIsValid(dirty.xmin))
		{
			note_rival(look, dirty.xmin, look->found ? rivals : slot);
			continue;
		}

		/* a version that was committed in the middle of the scan is later */
		if (look->found)
			ExecCopySlot(slot, rivals);
		look->found = true;
		look->rival = dirty.xmax;
		if (!TransactionIdIsValid(dirty.xmax))
			break;
		if (rivals == NULL)
			rivals = table_slot_create(store->rel, NULL);
	}
	index_endscan(scan);

	if (rivals)
		ExecDropSingleTupleTableSlot(rivals);
	return met_entry;
}

/*
 * Fetch the version of the key that a snapshot taken now sees, with our own
 * changes before command "curcid".  Never misses one.
 *
 * Every version is visited and judged by the snapshot: what that sees was in
 * the index before we started, and stays there.  An MVCC index scan would do
 * the same, but for its SIREAD locks, which would let unrelated keys abort
 * each other at SERIALIZABLE.
 */
static bool
fetch_version(IdemStore *store, const IdemKey *key, CommandId curcid,
			  TupleTableSlot *slot)
{
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	SnapshotData snapshot = *latest;
	IndexScanDesc scan = begin_scan(store, key, SnapshotAny);
	bool		found = false;

	snapshot.curcid = curcid;
	while (!found && index_getnext_slot(scan, ForwardScanDirection, slot))
		found = table_tuple_satisfies_snapshot(store->rel, slot, &snapshot);

	index_endscan(scan);
	UnregisterSnapshot(latest);
	return found;
}

/*
 * Is there a committed version of the key, or one of ours?  What the current
 * command has done counts, as the dirty look has it.
 */
static bool
key_exists(IdemStore *store, const IdemKey *key)
{
	TupleTableSlot *slot = table_slot_create(store->rel, NULL);
	bool		exists;

	exists = fetch_version(store, key, GetCurrentCommandId(false) + 1, slot);
	ExecDropSingleTupleTableSlot(slot);
	return exists;
}

/* Prepare for idem_look(); the slot is released by idem_look_end() */
void
idem_look_init(IdemLook *look, IdemStore *store)
{
	look->row.slot = table_slot_create(store->rel, NULL);
	look->token = 0;
	look->room = 0;
}

/*
 * Look at the key and judge what is there at this moment.  Not found means
 * that no committed version existed when we looked.
 */
void
idem_look(IdemLook *look, IdemStore *store, const IdemKey *key)
{
	CHECK_FOR_INTERRUPTS();
	while (!look_at_hint(look, store, key))
	{
		bool		met_entry;

		CHECK_FOR_INTERRUPTS();
		met_entry = look_by_index(look, store, key);

		/*
		 * A rival may have finished while we looked, in which case we may
		 * have seen neither what it replaced nor what it left.
		 */
		if (TransactionIdIsValid(look->rival) &&
			!TransactionIdIsInProgress(look->rival))
			continue;
		if (!look->found && met_entry && key_exists(store, key))
			continue;
		if (look->found)
			idem_hint_note(key, &look->row.slot->tts_tid);
		break;
	}

	look->now = GetCurrentTimestamp();
	look->row.state = IDEM_STATE_ABSENT;
	if (look->found)
		idem_row_read(&look->row, look->row.slot, look->now);
}

void
idem_look_end(IdemLook *look)
{
	ExecDropSingleTupleTableSlot(look->row.slot);
}

/* AFTER triggers have run: is the row that was written with this token there? */
void
idem_check_kept(IdemStore *store, const IdemKey *key, int64 token)
{
	IdemLook	look;

	idem_look_init(&look, store);
	idem_look(&look, store, key);
	if (!look.found || look.row.token != token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a trigger on table \"%s\" removed the row",
						RelationGetRelationName(store->rel))));
	idem_look_end(&look);
}

/* Is the found version the current transaction's own? */
bool
idem_written_here(IdemLook *look)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(look->row.slot, false, NULL);

	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
}

/*
 * Storage that the table got in the current transaction, and our first command
 * that wrote there.
 */
static struct
{
	TransactionId xid;			/* of the transaction */
	Oid			file;
	CommandId	first;
}			new_storage;

/*
 * We are about to write to the table.  If it was rewritten in this transaction
 * every row there looks like one of ours: remember which are, all from now on.
 */
void
idem_note_storage(Relation rel)
{
	TransactionId xid;

	if (!idem_has_new_storage(rel))
		return;
	xid = GetTopTransactionId();
	if (new_storage.xid == xid && new_storage.file == rel->rd_rel->relfilenode)
		return;
	new_storage.xid = xid;
	new_storage.file = rel->rd_rel->relfilenode;
	new_storage.first = GetCurrentCommandId(false);
}

/* The first command whose rows in the table's storage were not there before */
static CommandId
first_command(Relation rel)
{
	if (!idem_has_new_storage(rel))
		return FirstCommandId;
	if (new_storage.xid == GetTopTransactionIdIfAny() &&
		new_storage.file == rel->rd_rel->relfilenode)
		return new_storage.first;
	return InvalidCommandId;
}

/*
 * Was the reservation in the found row made by the current transaction?
 *
 * The version must be ours.  If we did not insert it as new, the version from
 * before our transaction must not carry the same token: then somebody else's
 * reservation was merely extended here.  A rolled back savepoint takes its
 * versions back, and nothing has to be remembered for however many keys.
 *
 * If the table was rewritten in this transaction (by ALTER TABLE, say), all
 * that was there then counts as from before: what the rows said of their
 * transactions is lost.
 */
bool
idem_made_here(IdemLook *look, IdemStore *store, const IdemKey *key)
{
	CommandId	first = first_command(store->rel);
	TupleTableSlot *before;
	HeapTuple	tuple;
	bool		made_here = true;

	if (!idem_written_here(look))
		return false;
	tuple = ExecFetchSlotHeapTuple(look->row.slot, false, NULL);
	if (first == FirstCommandId &&
		!(tuple->t_data->t_infomask & HEAP_UPDATED))
		return true;

	before = table_slot_create(store->rel, NULL);
	if (fetch_version(store, key, first, before))
	{
		bool		isnull;

		made_here = DatumGetInt64(slot_getattr(before, Anum_idem_token,
											   &isnull)) != look->row.token;
	}
	ExecDropSingleTupleTableSlot(before);
	return made_here;
}
