/*-------------------------------------------------------------------------
 *
 * idem_store.h
 *	  The table idempotency_keys, and one row of it.
 *
 *	extension.c	where the extension is
 *	keystore.c	the table: its objects, opened and locked
 *	layout.c	whether it is what the extension made
 *	row.c		the state of a row, the columns of a new version
 *	keyprobe.c	look at a key: absent, committed, or in a rival's hands
 *	hint.c		where a row was seen last
 *	keylock.c	the short lock on an absent key
 *	wait.c		bounded waiting for a key or the table
 *	rowwriter.c	insert or update one row with the executor's own pieces
 *	trust.c		whose triggers may run
 *	as_owner.c	write as a table's owner
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_H
#define IDEM_STORE_H

#include "idem_tool.h"

#include "access/attnum.h"
#include "executor/tuptable.h"
#include "storage/lock.h"
#include "utils/relcache.h"

struct EState;

/*
 * Columns of idempotency_keys, in order; frozen at 1.0.  Those that stay with a
 * key come first, then those of an attempt, then those of its outcome.
 */
enum
{
	Anum_idem_scope = 1,
	Anum_idem_key,
	Anum_idem_owner,
	Anum_idem_created_at,
	Anum_idem_reserved_at,
	Anum_idem_token,
	Anum_idem_attempt,
	Anum_idem_fingerprint,
	Anum_idem_holder,
	Anum_idem_maybe_ran,
	Anum_idem_expires_at,
	Anum_idem_completed_at,
	Anum_idem_status,
	Anum_idem_result
};
#define Natts_idem	14

/* What the status column can say */
typedef enum IdemStatus
{
	IDEM_IN_PROGRESS,
	IDEM_DONE,
	IDEM_FAILED,
	IDEM_RELEASED,
	IDEM_EXPIRED,
	IDEM_RESERVED				/* never stored: an answer of idem_reserve */
} IdemStatus;

/*
 * What a key's row means at a moment.  A lapsed lease and a row marked
 * "expired" are one state under two names; past its memory a row means
 * nothing at all, whether or not it is still there.
 */
typedef enum IdemState
{
	IDEM_STATE_ABSENT,			/* no row, or one past its memory */
	IDEM_STATE_RUNNING,			/* in progress, lease running */
	IDEM_STATE_UNKNOWN,			/* lapsed or expired: it may have run */
	IDEM_STATE_RELEASED,		/* given back: it did not run */
	IDEM_STATE_DONE,
	IDEM_STATE_FAILED
} IdemState;

/* How long a call of idem_reserve may wait for others */
typedef struct IdemWait
{
	int64		start;			/* microseconds by a clock that nobody sets */
	int64		usecs;			/* what the caller wants to wait */
	int64		deadlock_check; /* the next, so long after the start */
	const struct IdemKey *key;	/* what is waited for */
	bool		listed;			/* among those who wait for it */
	bool		polling;		/* as the one of them who looks often */
} IdemWait;

/* The table and its primary key, open for one call */
typedef struct IdemStore
{
	Relation	rel;
	Relation	pkey;			/* NULL until idem_store_pkey() */
	Oid			pkey_oid;
	Oid			sequence;		/* source of the fencing tokens */
	LOCKMODE	lockmode;		/* that it was opened with */
	bool		writing;		/* locked for writing as well, and to be kept so */
	IdemWait   *wait;			/* bound of waits for locks; NULL: none */
} IdemStore;

/*
 * A row as read.  The values belong to "slot" and live as long as it does.
 */
typedef struct IdemRow
{
	TupleTableSlot *slot;
	IdemStatus	status;
	int32		attempt;
	bool		maybe_ran;
	int64		token;
	TimestampTz created_at;
	TimestampTz expires_at;

	/* judged by idem_row_read() at one moment */
	IdemState	state;
	TimestampTz memory_end;		/* when the row stops meaning anything */
} IdemRow;

/* What idem_look() found out about a key */
typedef struct IdemLook
{
	bool		found;			/* "row" is a committed version, or our own */
	IdemRow		row;
	TransactionId rival;		/* another transaction's uncommitted change */
	bool		rival_writes;	/* ... which does not merely expire the row */
	int64		token;			/* to look for in what the rival wrote, or 0 */
	Size		room;			/* bytes that the caller will add to the row */
	bool		rival_has_token;	/* it is there */
	TimestampTz now;			/* the moment the state was judged at */
} IdemLook;

/* extension.c */
extern Oid	idem_extension_schema(void);
extern Relation idem_extension_table(const char *name, Oid *schema,
									 IdemWait *wait);
extern char *idem_extension_version(void);
extern Oid	idem_store_locate(Oid *extension);

/* keystore.c */
extern void idem_store_init(void);
extern void idem_store_open(IdemStore *store, IdemWait *wait);
extern void idem_store_open_to_write(IdemStore *store);
extern void idem_store_lock_for_write(IdemStore *store);
extern void idem_store_lock_indexes(IdemStore *store);
extern Relation idem_store_pkey(IdemStore *store);
extern void idem_store_close(IdemStore *store);
extern int64 idem_next_token(IdemStore *store, int64 last);

/* layout.c */
extern Oid	idem_check_layout(Relation rel, IdemWait *wait);
extern bool idem_has_plain_shape(Relation rel, int nindexes);
extern List *idem_arbiters(Relation *indexes, int n);
extern int	idem_layout_hint(const char *hint);

/* row.c */
extern void idem_row_init(void);
extern void idem_row_read(IdemRow *row, TupleTableSlot *slot, TimestampTz now);
extern bool idem_column_equals(TupleTableSlot *slot, AttrNumber attno,
							   const void *value);
extern bool idem_row_has_key(TupleTableSlot *slot, const IdemKey *key);
extern void idem_row_copy(TupleTableSlot *slot, const IdemRow *row);
extern Datum idem_row_value(const IdemRow *row, AttrNumber attno);
extern void idem_row_set(TupleTableSlot *slot, AttrNumber attno, Datum value);
extern void idem_row_set_nullable(TupleTableSlot *slot, AttrNumber attno,
								  Datum value, bool isnull);
extern IdemStatus idem_row_status(TupleTableSlot *slot);
extern IdemStatus idem_row_shown_status(const IdemRow *row);
extern Datum idem_status_datum(IdemStatus status);
extern const char *idem_status_name(IdemStatus status);
extern Bitmapset *idem_changing_columns(void);
extern Bitmapset *idem_all_columns(Relation rel);
extern void idem_row_default_columns(TupleTableSlot *slot, Relation rel,
									 struct EState *estate);
extern TimestampTz idem_seconds_after(TimestampTz start, int seconds);

/* keyprobe.c */
extern void idem_look_init(IdemLook *look, IdemStore *store);
extern void idem_look(IdemLook *look, IdemStore *store, const IdemKey *key);
extern void idem_look_end(IdemLook *look);
extern void idem_check_kept(IdemStore *store, const IdemKey *key, int64 token);
extern void idem_note_storage(Relation rel);
extern bool idem_written_here(IdemLook *look);
extern bool idem_made_here(IdemLook *look, IdemStore *store,
						   const IdemKey *key);

/* hint.c */
extern void idem_hint_note(const IdemKey *key, ItemPointer tid);
extern bool idem_hint_find(const IdemKey *key, ItemPointer tid);

/* keylock.c */
extern uint64 idem_key_hash(const IdemKey *key, int which);
extern void idem_key_locktag(LOCKTAG *tag, const IdemKey *key,
							 uint16 lockclass);
extern void idem_key_lock(const IdemKey *key);
extern bool idem_key_trylock(const IdemKey *key);
extern void idem_key_unlock(const IdemKey *key);
extern uint64 idem_key_mark(const IdemKey *key);

/* wait.c */
/* A caller may wait this long at most */
#define IDEM_MAX_WAIT		(USECS_PER_HOUR)

/*
 * A rival that only tidies away what is past its time (the sweep) is waited
 * for this long even by callers who do not want to wait.
 */
#define IDEM_BRIEF_WAIT		(30 * USECS_PER_SEC / 1000)

extern void idem_wait_init(IdemWait *wait, const IdemKey *key, int64 usecs);
extern bool idem_wait(IdemWait *wait, bool brief, TransactionId rival,
					  TimestampTz next_event);
extern void idem_lock_relation(IdemWait *wait, Oid relid, LOCKMODE lockmode);
extern void idem_wait_end(IdemWait *wait);

/* rowwriter.c */
typedef struct IdemWriter IdemWriter;

typedef enum IdemWriteResult
{
	IDEM_WRITTEN,
	IDEM_CONFLICT,				/* the key or row changed: look again */
	IDEM_BUSY					/* somebody holds the row; nothing done */
} IdemWriteResult;

extern void idem_writer_init(void);
extern IdemWriter *idem_writer_open(IdemStore *store, const IdemKey *key);
extern TupleTableSlot *idem_writer_slot(IdemWriter *writer);
extern IdemWriteResult idem_writer_insert(IdemWriter *writer);
extern IdemWriteResult idem_writer_lock(IdemWriter *writer, ItemPointer tid,
										bool wait);
extern IdemWriteResult idem_writer_update(IdemWriter *writer,
										  ItemPointer tid, bool anew);
extern void idem_writer_close(IdemWriter *writer);

/* trust.c */
extern void idem_check_triggers(Relation rel);
extern void idem_check_cascades(Relation rel);

/* as_owner.c */
typedef struct IdemCaller
{
	Oid			user;
	int			sec_context;
	int			guc_level;
} IdemCaller;

extern void idem_become_owner(IdemCaller *caller, Oid owner);
extern void idem_become_caller(const IdemCaller *caller);

#endif							/* IDEM_STORE_H */
