/*-------------------------------------------------------------------------
 *
 * idem_call.h
 *	  A caller's request: judged by what is seen of the key, by the clock and
 *	  by who asks.
 *
 *	args.c		validate and default what the caller passed
 *	request.c	idem_reserve as SQL calls it
 *	reserve.c, settle.c, lookup.c
 *				the calls
 *	claim.c		is a reservation still the caller's?
 *	answer.c	the row that idem_reserve returns
 *	owner.c		who may act
 *	durable.c	which commits must be flushed
 *	autocommit.c	is there a transaction around the call?
 *	callplan.c, callscan.c
 *				calls in FROM: planned, executed
 *	callsite.c	memory of single statements,
 *	session.c	and of interactive sessions
 *	report.c	errors
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CALL_H
#define IDEM_CALL_H

#include "idem_tool.h"

#include "store/idem_store.h"

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

/* args.c */
/* What a ttl is of: each has its setting, and its limit */
typedef enum IdemTtl
{
	IDEM_LEASE,
	IDEM_MEMORY
} IdemTtl;

extern void idem_key_from_args(IdemKey *key, FunctionCallInfo fcinfo,
							   int keyarg, int scopearg);
extern void idem_key_set(IdemKey *key, text *name, FunctionCallInfo fcinfo,
						 int scopearg);
extern text *idem_name_from_args(FunctionCallInfo fcinfo, int argno,
								 const char *what, int maxlen, bool empty_ok);
extern int64 idem_interval_usecs(const char *what, const Interval *span);
extern const Interval *idem_interval_from_args(FunctionCallInfo fcinfo,
											   int argno);
extern int64 idem_wait_from_args(FunctionCallInfo fcinfo, int argno);
extern void idem_check_ttl(const char *what, IdemTtl kind,
						   const Interval *ttl);
extern void idem_check_takeover(const Interval *takeover);
extern TimestampTz idem_ttl_end(IdemTtl kind, const Interval *ttl,
								TimestampTz now);
extern void idem_check_result_size(Datum result, const char *hint);
extern bool idem_result_from_args(FunctionCallInfo fcinfo, int resultarg,
								  Datum *result);
extern TimestampTz idem_interval_after(const char *what, TimestampTz start,
									   const Interval *span);

/* claim.c */
typedef enum IdemClaim
{
	IDEM_CLAIM_HOLDS,			/* the reservation is the caller's */
	IDEM_CLAIM_DEPENDS,			/* ... unless a rival's change is committed */
	IDEM_CLAIM_VOID				/* nothing of his to give back */
} IdemClaim;

extern IdemClaim idem_claim(const IdemKey *key, int64 token, bool lenient,
							IdemLook *look, IdemStore *store);

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

extern const Oid idem_answer_types[];

/* An answer; values are in the memory that was the current one */
typedef struct IdemAnswer
{
	Datum		values[Natts_answer];
	bool		isnull[Natts_answer];
} IdemAnswer;

extern void idem_check_columns(TupleDesc desc, const Oid *types, int natts,
							   const char *name);
extern void idem_answer(IdemAnswer *answer, const IdemRow *row,
						IdemStatus status, TimestampTz now);
extern void idem_answer_move(IdemAnswer *answer);
extern HeapTuple idem_answer_tuple(const IdemAnswer *answer,
								   FunctionCallInfo fcinfo);

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
	IdemAnswer	answer;
	int64		token;			/* reserved: the fencing token */
	bool		ours;			/* in progress by the current transaction */
} IdemReserveOutcome;

extern void idem_reserve_key(const IdemReserveRequest *request,
							 IdemReserveOutcome *outcome);

/* settle.c */
extern void idem_complete_key(const IdemKey *key, int64 token,
							  const Interval *ttl, NullableDatum *result);
extern bool idem_same_result(const IdemRow *row, Datum result,
							 bool result_isnull);
extern void idem_check_stored(IdemRow *row, TupleTableSlot *slot,
							  const IdemKey *key, IdemStatus status,
							  int64 token);

/* callplan.c, callscan.c: calls in FROM */
#define IDEM_SCAN_FUNCTIONS	3	/* there are */
#define IDEM_SCAN_COLUMNS	13	/* that they have at most */

/* A function with one row or none, which can be scanned */
typedef struct IdemScanFunction
{
	const char *name;			/* for EXPLAIN */
	PGFunction	function;		/* its address, as SQL calls it */
	int			nargs;
	int			natts;
	const Oid  *types;			/* of its columns */
	bool		(*call) (FunctionCallInfo fcinfo, Datum *values,
						 bool *isnull);	/* false: no row */
} IdemScanFunction;

/* request.c, lookup.c */
extern const IdemScanFunction idem_reserve_scan;
extern const IdemScanFunction idem_lookup_scan;

extern void idem_callscan_add(const IdemScanFunction *function);
extern int	idem_callscan_find(PGFunction address);
extern const IdemScanFunction *idem_callscan_function(int number);
extern const struct CustomScanMethods *idem_callscan_methods(int number);
extern void idem_callplan_init(void);

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

/* autocommit.c */
extern void idem_require_autocommit(const char *function);

/* report.c */
extern void idem_count_conflict(int *conflicts, const IdemKey *key);
extern char *idem_describe(const IdemKey *key, const IdemRow *row);
extern pg_noreturn void idem_report_denied(const IdemKey *key,
										   const IdemRow *row);
extern pg_noreturn void idem_report(IdemError error, const IdemKey *key,
						const IdemRow *row);

#endif							/* IDEM_CALL_H */
