/*-------------------------------------------------------------------------
 *
 * idem_keys.h
 *	  Names, fingerprints and derived keys: what is computed from arguments
 *	  alone.
 *
 *	name.c		what a scope, a key or a holder may be called
 *	canonical.c	one text for all JSON that means the same
 *	keys.c		fingerprints and derived keys
 *	printed.c	can a jsonb be read as text?
 *	siphash.c	a hash that nobody can find collisions of
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYS_H
#define IDEM_KEYS_H

#include "idem_tool.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

/* name.c */
extern const char *idem_name_error(const char *str, int len, int maxlen,
								   bool empty_ok);

/* canonical.c */
/* One member that is added to an object while it is written */
typedef struct IdemMember
{
	const char *name;			/* server encoding, need not end in NUL */
	int			namelen;
	JsonbValue	value;			/* scalar, or jbvBinary for a container */
} IdemMember;

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
extern text *idem_make_call_key(text *tool, Jsonb *args, text *turn);

#endif							/* IDEM_KEYS_H */
