/*-------------------------------------------------------------------------
 *
 * keystore.c
 *	  The table idempotency_keys: where it is, opened and locked.
 *
 * The only file that knows the names of the extension's objects.  Object
 * identifiers are cached for the session; they would outlive a DROP EXTENSION,
 * so each invalidation of the table makes us look them up anew.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define IDEM_SEQUENCE_NAME	"idempotency_keys_token_seq"

/*
 * Cached identifiers.  The table's is watched for invalidations whether or not
 * it is still "known", that is, trusted without looking it up again.
 */
static bool table_known = false;
static Oid	table_oid = InvalidOid;
static Oid	pkey_oid = InvalidOid;
static Oid	sequence_oid = InvalidOid;

/*
 * Forget what we know if the table, its index or the sequence changed (0:
 * everything)
 */
static void
store_inval_callback(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == table_oid || relid == pkey_oid ||
		relid == sequence_oid)
		table_known = false;
}

/* Called once per backend, when the library is loaded */
void
idem_store_init(void)
{
	CacheRegisterRelcacheCallback(store_inval_callback, (Datum) 0);
}

/*
 * Find the table, and what else the extension has.  Leaves it open and locked.
 */
static Relation
find_table(IdemWait *wait)
{
	Oid			schema;
	Relation	rel = idem_extension_table(IDEM_TABLE_NAME, &schema, wait);

	if (rel == NULL || rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" of extension \"%s\" does not exist",
						IDEM_TABLE_NAME, IDEM_EXTENSION_NAME),
				 idem_layout_hint(NULL)));

	pkey_oid = idem_check_layout(rel, wait);
	sequence_oid = get_relname_relid(IDEM_SEQUENCE_NAME, schema);
	if (!OidIsValid(sequence_oid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("objects of extension \"%s\" are missing",
						IDEM_EXTENSION_NAME),
				 idem_layout_hint(NULL)));

	table_oid = RelationGetRelid(rel);
	table_known = true;			/* last: an error leaves nothing half known */
	return rel;
}

/*
 * Open the table by what we know of it.  Taking the lock brings the news: if
 * the table is still known after that, it is there and will stay.
 */
static Relation
open_known_table(IdemStore *store, bool to_write)
{
	if (to_write && ConditionalLockRelationOid(table_oid, RowExclusiveLock))
		store->lockmode = RowExclusiveLock;
	else
		idem_lock_relation(store->wait, table_oid, AccessShareLock);
	if (table_known)
		return relation_open(table_oid, NoLock);
	UnlockRelationOid(table_oid, store->lockmode);
	store->lockmode = AccessShareLock;
	return NULL;
}

static void
open_table(IdemStore *store, IdemWait *wait, bool to_write)
{
	store->wait = wait;
	store->lockmode = AccessShareLock;
	store->writing = false;
	store->rel = table_known ? open_known_table(store, to_write) : NULL;
	if (store->rel == NULL)
		store->rel = find_table(wait);
	store->pkey = NULL;
	store->pkey_oid = pkey_oid;
	store->sequence = sequence_oid;
}

/* Open the table for reading; waits for locks as "wait" has it, NULL: as any */
void
idem_store_open(IdemStore *store, IdemWait *wait)
{
	open_table(store, wait, false);
}

/*
 * The same for who is likely to write, which spares him the second lock.  If it
 * cannot be had at once he reads first: there may be nothing to write.
 */
void
idem_store_open_to_write(IdemStore *store)
{
	open_table(store, NULL, !XactReadOnly && !RecoveryInProgress());
}

/*
 * Lock the table for writing; the lock stays until the transaction ends.  Who
 * has to wait for it lets go of the index: REINDEX keeps writers out of the
 * table while it waits for those who have the index.
 */
void
idem_store_lock_for_write(IdemStore *store)
{
	Oid			relid = RelationGetRelid(store->rel);

	if (store->lockmode == RowExclusiveLock)
	{
		store->writing = true;
		return;
	}
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
	{
		if (store->pkey)
			index_close(store->pkey, AccessShareLock);
		store->pkey = NULL;
		idem_lock_relation(store->wait, relid, RowExclusiveLock);
	}
	store->writing = true;
}

/* Lock the indexes for writing: who opens them all would wait for any lock */
void
idem_store_lock_indexes(IdemStore *store)
{
	List	   *indexes = RelationGetIndexList(store->rel);
	ListCell   *lc;

	foreach(lc, indexes)
		idem_lock_relation(store->wait, lfirst_oid(lc), RowExclusiveLock);
	list_free(indexes);
}

/*
 * The primary key's index; many calls can do without.  The lock is a reader's,
 * for writers as well: whoever keeps writers out of an index, but not readers,
 * keeps them out of its table first (REINDEX, bt_index_parent_check()).
 */
Relation
idem_store_pkey(IdemStore *store)
{
	if (store->pkey == NULL)
	{
		idem_lock_relation(store->wait, store->pkey_oid, AccessShareLock);
		store->pkey = index_open(store->pkey_oid, NoLock);
	}
	return store->pkey;
}

/*
 * Close the table.  Locks go at once where nothing was written, so that a replay
 * leaves no entry in the lock table; a writer's are not worth taking twice.
 */
void
idem_store_close(IdemStore *store)
{
	if (store->pkey)
		index_close(store->pkey, store->writing ? NoLock : AccessShareLock);
	relation_close(store->rel, store->writing ? NoLock : store->lockmode);
}

/*
 * A fencing token above "last", the token of the key's row so far.
 *
 * A sequence can lag behind its rows, after a failover to an asynchronous
 * replica for example; the row is then the better witness.
 */
int64
idem_next_token(IdemStore *store, int64 last)
{
	int64		token;

	/* which nextval would wait for */
	idem_lock_relation(store->wait, store->sequence, RowExclusiveLock);
	token = nextval_internal(store->sequence, false);
	if (token <= last && pg_add_s64_overflow(last, 1, &token))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("fencing token out of range")));
	return token;
}
