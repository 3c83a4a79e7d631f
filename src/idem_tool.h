/*-------------------------------------------------------------------------
 *
 * idem_tool.h
 *	  Atomic idempotency keys inside the database: shared declarations.
 *
 * A call passes these stations, each a file of its own:
 *
 *	args.c		validate and default what the caller passed
 *	keyprobe.c	look at the key: absent, committed, or in a rival's hands
 *	reserve.c, settle.c, claim.c, lookup.c
 *				judge what was seen, by the clock and by who asks
 *	keystore.c	the table: its objects, opened and locked
 *	layout.c	whether it is what the extension made
 *	row.c		the state of a row, the columns of a new version
 *	rowwriter.c	insert or update one row with the executor's own pieces
 *	answer.c	the row that idem_reserve returns
 *
 * and an operator's these:
 *
 *	operate.c	settle or free a key by hand
 *	as_owner.c	write as the table's owner
 *	audit.c		leave a trace of it
 *
 * Beside it: keylock.c (the short lock on an absent key), wait.c (bounded
 * waiting), hint.c (where a row was seen last), durable.c (which commits must
 * be flushed), owner.c (who may act), trust.c (whose triggers may run),
 * autocommit.c (is there a transaction around the call?), report.c (errors),
 * callsite.c and session.c (memory of single statements and of interactive
 * sessions), canonical.c and keys.c (fingerprints, derived keys), printed.c (can
 * it be read as text?).  The gate, on top of all this, and the
 * worker have headers of their own, idem_gate.h and idem_worker.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TOOL_H
#define IDEM_TOOL_H

#include "postgres.h"

#include "access/attnum.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/lock.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"

#include "idem_compat.h"

#define IDEM_EXTENSION_NAME "idem_tool"
#define IDEM_VERSION		"1.0"	/* of the SQL objects that this is for */
#define IDEM_TABLE_NAME		"idempotency_keys"

/* Limits of the contract, in bytes of the server encoding */
#define IDEM_MAX_SCOPE		255
#define IDEM_MAX_KEY		1024
#define IDEM_MAX_HOLDER		255

/*
 * Microseconds since some moment in the past, by a clock that nobody sets: how
 * long something takes does not depend on what an administrator or a time
 * server does to the system's.  All processes of a server have the same one.
 */
static inline int64
idem_clock(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* A caller may wait this long at most */
#define IDEM_MAX_WAIT		(USECS_PER_HOUR)

/*
 * A rival that only tidies away what is past its time (the sweep) is waited
 * for this long even by callers who do not want to wait.
 */
#define IDEM_BRIEF_WAIT		(30 * USECS_PER_SEC / 1000)

/*
 * Classes of advisory lock that are ours alone; SQL's have 1 and 2, and
 * other extensions are known to use numbers up to 16.
 */
#define IDEM_LOCK_INSERTING	73
#define IDEM_LOCK_POLLING	74
#define IDEM_LOCK_LAUNCHER	75
#define IDEM_LOCK_SWEEP		76
#define IDEM_LOCK_WAITING	77

#define ERRCODE_IDEM_MISMATCH		MAKE_SQLSTATE('I', 'K', '0', '0', '1')
#define ERRCODE_IDEM_LOST			MAKE_SQLSTATE('I', 'K', '0', '0', '2')
#define ERRCODE_IDEM_NO_RESERVATION	MAKE_SQLSTATE('I', 'K', '0', '0', '3')
#define ERRCODE_IDEM_SETTLED		MAKE_SQLSTATE('I', 'K', '0', '0', '4')
#define ERRCODE_IDEM_IN_PROGRESS	MAKE_SQLSTATE('I', 'K', '0', '0', '5')
#define ERRCODE_IDEM_UNKNOWN		MAKE_SQLSTATE('I', 'K', '0', '0', '6')
#define ERRCODE_IDEM_FAILED			MAKE_SQLSTATE('I', 'K', '0', '0', '7')
#define ERRCODE_IDEM_UNKEYED		MAKE_SQLSTATE('I', 'K', '0', '0', '8')

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

/* The errors that idem_report() raises */
typedef enum IdemError
{
	IDEM_MISMATCH,				/* IK001 */
	IDEM_LOST,					/* IK002: taken over */
	IDEM_WRONG_TOKEN,			/* IK002: never this key's, or long ago */
	IDEM_NO_TOKEN,				/* IK003: not this transaction's, no token */
	IDEM_NOT_RESERVED,			/* IK003: absent or released */
	IDEM_NOT_COMMITTED,			/* IK003: made by a transaction that is open */
	IDEM_SETTLED,				/* IK004 */

	/* an operator's */
	IDEM_RESOLVED,				/* IK004 */
	IDEM_NOT_RESOLVABLE,		/* IK003: nothing in progress */
	IDEM_LEASED,				/* IK005: a lease is running */
	IDEM_UNRESOLVED				/* IK006: to be resolved, not forgotten */
} IdemError;

/* A key within its scope, as validated by idem_key_from_args() */
typedef struct IdemKey
{
	text	   *scope;
	text	   *key;
	uint64		hash;			/* of both */
} IdemKey;

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
	Oid			answer_type;	/* what idem_reserve returns */
	bool		writing;		/* locked for writing as well */
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
	bool		rival_has_token;	/* it is there */
	TimestampTz now;			/* the moment the state was judged at */
} IdemLook;

/* One member that is added to an object while it is written */
typedef struct IdemMember
{
	const char *name;			/* server encoding, need not end in NUL */
	int			namelen;
	JsonbValue	value;			/* scalar, or jbvBinary for a container */
} IdemMember;

typedef struct IdemWriter IdemWriter;

/* idem_tool.c: settings; times in seconds, -1 for "for ever" or "always" */
extern int	idem_reservation_ttl;
extern int	idem_result_ttl;
extern int	idem_takeover;
extern int	idem_unknown_ttl;
extern int	idem_audit_ttl;
extern int	idem_max_reservation_ttl;
extern int	idem_max_result_ttl;
extern int	idem_max_result_size;
extern char *idem_scope;
extern char *idem_owner;
extern bool idem_durable;
extern bool idem_session_tokens;
extern bool idem_two_phase;

/* args.c */
extern void idem_key_from_args(IdemKey *key, FunctionCallInfo fcinfo,
							   int keyarg, int scopearg);
extern void idem_key_set(IdemKey *key, text *name, FunctionCallInfo fcinfo,
						 int scopearg);
extern const char *idem_name_error(const char *str, int len, int maxlen,
								   bool empty_ok);
extern text *idem_name_from_args(FunctionCallInfo fcinfo, int argno,
								 const char *what, int maxlen, bool empty_ok);
extern int64 idem_interval_usecs(const char *what, const Interval *span);
extern const Interval *idem_interval_from_args(FunctionCallInfo fcinfo,
											   int argno);
extern int64 idem_wait_from_args(FunctionCallInfo fcinfo, int argno);
/* What a ttl is of: each has its setting, and its limit */
typedef enum IdemTtl
{
	IDEM_LEASE,
	IDEM_MEMORY
} IdemTtl;

extern void idem_check_ttl(const char *what, IdemTtl kind,
						   const Interval *ttl);
extern void idem_check_takeover(const Interval *takeover);
extern TimestampTz idem_ttl_end(IdemTtl kind, const Interval *ttl,
								TimestampTz now);
extern void idem_check_result_size(Datum result, const char *hint);
extern bool idem_result_from_args(FunctionCallInfo fcinfo, int resultarg,
								  Datum *result);
extern TimestampTz idem_seconds_after(TimestampTz start, int seconds);
extern TimestampTz idem_interval_after(const char *what, TimestampTz start,
									   const Interval *span);

/* extension.c */
extern Oid	idem_extension_schema(void);
extern Relation idem_extension_table(const char *name, Oid *schema,
									 IdemWait *wait);
extern char *idem_extension_version(void);
extern Oid	idem_store_locate(Oid *extension);

/* layout.c */
extern Oid	idem_check_layout(Relation rel, IdemWait *wait);
extern List *idem_arbiters(Relation *indexes, int n);
extern int	idem_layout_hint(const char *hint);

/* keystore.c */
extern void idem_store_init(void);
extern void idem_store_open(IdemStore *store, IdemWait *wait);
extern void idem_store_lock_for_write(IdemStore *store);
extern void idem_store_lock_indexes(IdemStore *store);
extern Relation idem_store_pkey(IdemStore *store);
extern Relation idem_store_pkey_for_write(IdemStore *store);
extern void idem_store_close(IdemStore *store);
extern int64 idem_next_token(IdemStore *store, int64 last);

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

/* keyprobe.c */
extern void idem_look_init(IdemLook *look, IdemStore *store);
extern void idem_look(IdemLook *look, IdemStore *store, const IdemKey *key);
extern void idem_look_end(IdemLook *look);
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
extern void idem_wait_init(IdemWait *wait, const IdemKey *key, int64 usecs);
extern bool idem_wait(IdemWait *wait, bool brief, TransactionId rival,
					  TimestampTz next_event);
extern void idem_lock_relation(IdemWait *wait, Oid relid, LOCKMODE lockmode);

/* rowwriter.c */
typedef enum IdemWriteResult
{
	IDEM_WRITTEN,
	IDEM_CONFLICT,				/* the key or row changed: look again */
	IDEM_BUSY					/* somebody holds the row; nothing done */
} IdemWriteResult;

extern IdemWriter *idem_writer_open(IdemStore *store, const IdemKey *key);
extern TupleTableSlot *idem_writer_slot(IdemWriter *writer);
extern IdemWriteResult idem_writer_insert(IdemWriter *writer);
extern IdemWriteResult idem_writer_lock(IdemWriter *writer, ItemPointer tid,
										bool wait);
extern IdemWriteResult idem_writer_update(IdemWriter *writer,
										  ItemPointer tid, bool anew);
extern void idem_writer_close(IdemWriter *writer);
extern void idem_writer_forget(void);

/* claim.c */
typedef enum IdemClaim
{
	IDEM_CLAIM_HOLDS,			/* the reservation is the caller's */
	IDEM_CLAIM_DEPENDS,			/* ... unless a rival's change is committed */
	IDEM_CLAIM_VOID				/* nothing of his to give back */
} IdemClaim;

extern IdemClaim idem_claim(const IdemKey *key, int64 token, bool lenient,
							IdemLook *look, IdemStore *store);

/* settle.c */
extern bool idem_same_result(const IdemRow *row, Datum result,
							 bool result_isnull);
extern void idem_check_stored(IdemRow *row, TupleTableSlot *slot,
							  const IdemKey *key, IdemStatus status,
							  int64 token);

/* audit.c */
extern void idem_audit(const char *action, const IdemKey *key,
					   const char *old_status, const char *new_status);
extern void idem_audit_refused(const char *action, const IdemKey *key);
extern int64 idem_audit_trim(int max_rows);

/* answer.c: the columns of type idem_answer, in order */
enum
{
	Anum_answer_status = 0,
	Anum_answer_result,
	Anum_answer_token,
	Anum_answer_attempt,
	Anum_answer_maybe_ran,
	Anum_answer_created_at,
	Anum_answer_expires_at,
	Anum_answer_retry_after,
	Natts_answer
};

extern void idem_check_columns(TupleDesc desc, const Oid *types, int natts,
							   const char *name);
extern HeapTuple idem_answer(IdemStore *store, const IdemRow *row,
							 IdemStatus status, TimestampTz now);
extern void idem_answer_read(HeapTuple answer, Datum *values, bool *nulls);

/* reserve.c */
typedef struct IdemReserveRequest
{
	const char *name;			/* of the SQL function, for errors */
	IdemKey		key;
	const Interval *ttl;		/* NULL: the setting's */
	const Interval *takeover;	/* NULL: the setting's */
	bytea	   *fingerprint;	/* NULL: no request given */
	text	   *holder;			/* NULL: none given */
	int64		wait_usecs;
} IdemReserveRequest;

typedef struct IdemReserveOutcome
{
	IdemStatus	status;
	HeapTuple	answer;			/* a row of type idem_answer */
	int64		token;			/* reserved: the fencing token */
	bool		ours;			/* in progress by the current transaction */
} IdemReserveOutcome;

extern void idem_reserve_key(const IdemReserveRequest *request,
							 IdemReserveOutcome *outcome);

/* settle.c */
extern void idem_complete_key(const IdemKey *key, int64 token,
							  const Interval *ttl, NullableDatum *result);

/* callsite.c */
#define IDEM_BY_VALUE	0		/* instead of an argument type's length */

extern HeapTuple idem_callsite_recall(FunctionCallInfo fcinfo,
									  const int *arglens);
extern void idem_callsite_remember(FunctionCallInfo fcinfo,
								   const int *arglens, HeapTuple answer);

/* session.c */
extern void idem_session_note(const IdemKey *key, int64 token);
extern int64 idem_session_token(const IdemKey *key);

/* durable.c */
extern void idem_durable_init(void);
extern void idem_durable_reserved(void);
extern void idem_durable_settled(void);
extern void idem_durable_must_flush(void);

/* owner.c */
extern void idem_owner_init(void);
extern text *idem_owner_for_new(void);
extern bool idem_owner_is_gone(const IdemRow *row);
extern bool idem_may_reserve(const IdemRow *row);
extern bool idem_may_settle(const IdemRow *row);

/* as_owner.c */
typedef struct IdemCaller
{
	Oid			user;
	int			sec_context;
	int			guc_level;
} IdemCaller;

extern void idem_become_owner(IdemCaller *caller, Oid owner);
extern void idem_become_caller(const IdemCaller *caller);

/* trust.c */
extern void idem_check_triggers(Relation rel);
extern void idem_check_cascades(Relation rel);

/* autocommit.c */
extern void idem_require_autocommit(const char *function);

/* report.c */
extern void idem_count_conflict(int *conflicts, const IdemKey *key);
extern char *idem_describe(const IdemKey *key, const IdemRow *row);
extern pg_noreturn void idem_report_denied(const IdemKey *key,
										   const IdemRow *row) ;
extern pg_noreturn void idem_report(IdemError error, const IdemKey *key,
						const IdemRow *row) ;

/*
 * stats.c: what callers do is counted, per database, if the library is
 * preloaded; at once, so that a rollback does not take it back
 */
typedef enum IdemCount
{
	IDEM_COUNT_RESERVED,
	IDEM_COUNT_TAKEN_OVER,
	IDEM_COUNT_REPLAYED,
	IDEM_COUNT_IN_PROGRESS,
	IDEM_COUNT_UNKNOWN,			/* answered "expired" */
	IDEM_COUNT_MISMATCHED,		/* IK001 */
	IDEM_COUNT_COMPLETED,
	IDEM_COUNT_FAILED,
	IDEM_COUNT_RELEASED,
	IDEM_COUNT_ABANDONED,
	IDEM_COUNT_EXTENDED,
	IDEM_COUNT_LOST,			/* IK002 */
	IDEM_COUNTS
} IdemCount;

extern pg_atomic_uint64 *idem_counts;	/* this session's, once it has any */

extern bool idem_stats_attach(void);

static inline void
idem_count(IdemCount what)
{
	if (idem_counts != NULL || idem_stats_attach())
		pg_atomic_fetch_add_u64(&idem_counts[what], 1);
}

/* canonical.c */
extern uint16 idem_wire_field(const char *wire, int field);
extern void idem_canonical_append(StringInfo buf, JsonbContainer *jc);
extern void idem_canonical_append_object(StringInfo buf,
										 JsonbContainer *fields,
										 const IdemMember *extra, int nextra);

/* printed.c */
extern bool idem_is_printable(Datum jsonb);
extern void idem_check_printable(Datum result);

/* keys.c */
extern bytea *idem_fingerprint_jsonb(Jsonb *request);
extern bytea *idem_fingerprint_object(JsonbContainer *fields,
									  const IdemMember *extra, int nextra);
extern void idem_member_text(IdemMember *member, const char *name,
							 text *value);
extern void idem_member_jsonb(IdemMember *member, const char *name,
							  Jsonb *value);
extern void idem_wait_end(IdemWait *wait);
extern text *idem_make_call_key(text *tool, Jsonb *args, text *turn);

#endif							/* IDEM_TOOL_H */
