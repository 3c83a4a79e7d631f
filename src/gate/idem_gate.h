/*-------------------------------------------------------------------------
 *
 * idem_gate.h
 *	  Tools: run once, and the gate between reads and writes.
 *
 * tools.c is the registry and register.c changes it, function.c finds and checks
 * what is run as a tool, run.c runs it once, gate.c tells which calls need a key,
 * begin.c does the same for tools outside the database, refuse.c has the errors
 * of functions that return a bare result.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_GATE_H
#define IDEM_GATE_H

#include "call/idem_call.h"

#include "utils/jsonb.h"

/* tools.c: the registry */
typedef enum IdemEffect
{
	IDEM_READ,
	IDEM_WRITE,
	IDEM_IDEMPOTENT				/* a write that its target dedupes */
} IdemEffect;

/* A registered tool; times that are NULL are the settings' */
typedef struct IdemTool
{
	text	   *name;
	text	   *function;		/* NULL: it runs outside the database */
	IdemEffect	effect;
	Interval   *reservation_ttl;
	Interval   *result_ttl;
	Interval   *takeover;
	Interval   *fallback_ttl;	/* NULL: a key is required */
} IdemTool;

extern void idem_tools_init(void);
extern void idem_tool_from_args(IdemTool *tool, FunctionCallInfo fcinfo,
								int toolarg);
extern void idem_tool_again(IdemTool *tool);
extern Relation idem_tools_open_for_write(void);
extern bool idem_tools_find(Relation rel, text *name, ItemPointer tid);

/* function.c: what is run as a tool */
extern Oid	idem_tool_function(const IdemTool *tool);
extern void idem_check_function_kind(Oid function);
extern void idem_check_function(Oid function);
extern void idem_check_function_again(Oid function, text *signature);
extern text *idem_function_signature(Oid function);
extern NullableDatum idem_call_function(Oid function, Jsonb *args);

/* run.c */
extern bytea *idem_call_fingerprint(text *tool, Jsonb *args);
extern NullableDatum idem_run_once(const IdemKey *key,
								   const IdemReserveOutcome *outcome,
								   Oid function, Jsonb *args,
								   const Interval *result_ttl);

/* gate.c: a call of a registered tool */
typedef struct IdemGate
{
	IdemTool	tool;
	Jsonb	   *args;
	bool		derived_key;	/* the weak fallback: made from the arguments */
	const Interval *result_ttl; /* how long the key's result is kept */
} IdemGate;

extern Jsonb *idem_tool_args_from_args(FunctionCallInfo fcinfo, int argno);
extern void idem_gate_request(IdemReserveRequest *request, IdemGate *gate,
							  FunctionCallInfo fcinfo, int keyarg,
							  int scopearg);
extern void idem_gate_reserve(const IdemReserveRequest *request,
							  IdemGate *gate, IdemReserveOutcome *outcome);

/* begin.c */
extern const IdemScanFunction idem_begin_scan;

/* refuse.c */
extern pg_noreturn void idem_refuse(const IdemKey *key,
						const IdemReserveOutcome *outcome);
extern pg_noreturn void idem_refuse_unkeyed(const IdemTool *tool);

#endif							/* IDEM_GATE_H */
