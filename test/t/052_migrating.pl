# docs/migrating.md, step by step: every statement of it is taken out of the
# document and run, on a table of one's own with rows of every kind and with
# callers of the old and the new code at work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IdemTest::Blocks;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

#
# The statements of the document
#
my @blocks = block_by('052_migrating', 'docs/migrating.md');
my %was_run;

# The first block that has this text and that has not been run yet
sub block
{
	my ($text) = @_;

	foreach my $i (grep { !$was_run{$_} } 0 .. $#blocks)
	{
		next if index($blocks[$i], $text) < 0;
		$was_run{$i} = 1;
		return $blocks[$i];
	}
	die "there is no block with: $text";
}

my $node = PostgreSQL::Test::Cluster->new('old');
$node->init(allows_streaming => 'logical');
$node->append_conf('postgresql.conf', <<'END');
log_statement = none
autovacuum = off
fsync = off
max_connections = 50
shared_preload_libraries = idem_tool
idem_tool.naptime = 100ms
END
$node->start;
$node->safe_psql('postgres', $_)
  foreach 'CREATE DATABASE shop', 'CREATE ROLE my_app LOGIN',
  'CREATE ROLE stranger LOGIN';

# SQL as an administrator
sub admin
{
	my ($sql) = @_;

	return $node->safe_psql('shop', $sql);
}

# ... that must fail: its error
sub refused
{
	my ($sql) = @_;
	my ($status, undef, $error) = $node->psql('shop', $sql, on_error_stop => 1);

	return $status == 0 ? 'nothing was refused' : $error;
}

sub app
{
	return session($node, dbname => 'shop', user => 'my_app');
}

#
# A table of one's own, its code, rows of every kind
#
admin(block('CREATE TABLE idempotency_keys ('));
admin(<<'END');
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys TO my_app;
GRANT USAGE ON idempotency_keys_id_seq TO my_app;

CREATE TABLE effects (key text, who text);
GRANT INSERT ON effects TO my_app;

CREATE FUNCTION request(k text) RETURNS jsonb IMMUTABLE LANGUAGE sql AS
	$$SELECT jsonb_build_object('for', k)$$;

-- what it says: a body, locked, or that it acts
CREATE FUNCTION old_reserve(k text, u bigint = 1) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r idempotency_keys;
BEGIN
	INSERT INTO idempotency_keys (user_id, idempotency_key, request_params,
			recovery_point, locked_at)
		VALUES (u, k, request(k), 'started', clock_timestamp())
		ON CONFLICT DO NOTHING;
	IF FOUND THEN
		RETURN 'act';
	END IF;
	SELECT * INTO r FROM idempotency_keys WHERE (user_id, idempotency_key) = (u, k);
	IF r.response_code IS NOT NULL THEN
		RETURN r.response_body;
	END IF;
	UPDATE idempotency_keys SET locked_at = clock_timestamp()
		WHERE id = r.id AND response_code IS NULL AND (locked_at IS NULL
			OR locked_at < clock_timestamp() - interval '90 seconds');
	RETURN CASE WHEN FOUND THEN 'act' ELSE 'locked' END;
END;
$$;

CREATE FUNCTION old_finish(k text, body jsonb, code integer = 200) RETURNS void
LANGUAGE sql AS $$
	UPDATE idempotency_keys
	SET recovery_point = 'finished', response_code = code, response_body = body,
		locked_at = NULL
	WHERE (user_id, idempotency_key) = (1, k);
$$;

CREATE PROCEDURE old_code(k text, INOUT said text = NULL) LANGUAGE plpgsql AS $$
BEGIN
	said := old_reserve(k);
	IF said = 'act' THEN
		COMMIT;
		INSERT INTO effects VALUES (k, 'old');
		COMMIT;
		said := format('"%s by the old code"', k);
		PERFORM old_finish(k, said::jsonb);
	END IF;
END;
$$;

INSERT INTO idempotency_keys (user_id, idempotency_key, request_params,
	recovery_point, locked_at, response_code, response_body, created_at)
SELECT u, k, request(k), CASE WHEN code IS NULL THEN 'started' ELSE 'finished' END,
	now() - locked, code, body::jsonb, now() - created
FROM (VALUES
	(1, 'finished', NULL::interval, 200, '{"order": 1}', interval '1 hour'),
	(2, 'finished', NULL, 201, '{"order": 2}', '1 hour'),
	(1, 'empty', NULL, 204, NULL, '1 hour'),
	(1, 'declined', NULL, 402, '"declined"', '1 hour'),
	(1, 'error', NULL, 500, '"oops"', '1 hour'),
	(1, 'past', NULL, 200, '"past"', '30 hours'),
	(1, 'stale', '5 min', NULL, NULL, '10 min'),
	(1, 'stale too', '5 min', NULL, NULL, '10 min'),
	(1, 'unlocked', NULL, NULL, NULL, '10 min'),
	(1, 'ancient', '13 hours', NULL, NULL, '13 hours')
) AS v (u, k, locked, code, body, created);

INSERT INTO idempotency_keys (user_id, idempotency_key, request_params,
	recovery_point, response_code, response_body)
SELECT 3, 'k' || n, request('k' || n), 'finished', 200, to_jsonb(n)
FROM generate_series(1, 2000) AS n;
END

#
# 1. and 2. Beside it
#
like(refused('CREATE EXTENSION idem_tool'),
	qr/relation "idempotency_keys" already exists/, 'it collides, as documented');
like(refused('BEGIN; ALTER TABLE idempotency_keys RENAME TO x; CREATE EXTENSION idem_tool'),
	qr/idempotency_keys_pkey/, '... with the index of a renamed table as well');
admin(block('CREATE EXTENSION idem_tool SCHEMA idem'));
is(app()->query(q{SELECT 'idempotency_keys'::regclass::oid = 'public.idempotency_keys'::regclass,
	'idem_reserve'::regproc::text}), 't|idem_reserve',
	'the search_path finds their table and our functions');
like(refused('ALTER EXTENSION idem_tool SET SCHEMA public'),
	qr/does not support SET SCHEMA/, 'it cannot be moved');

admin(<<'END');
CREATE FUNCTION new_reserve(k text, u bigint = 1) RETURNS idem.idem_answer
LANGUAGE sql AS $$
	SELECT * FROM idem.idem_reserve(k, request => request(k), scope => 'user:' || u);
$$;

CREATE PROCEDURE new_code(k text, INOUT said text = NULL) LANGUAGE plpgsql AS $$
DECLARE
	a idem.idem_answer := new_reserve(k);
BEGIN
	said := CASE a.status WHEN 'done' THEN a.result ->> 'body' ELSE a.status END;
	IF a.status = 'done' THEN
		said := to_jsonb(said);
	ELSIF a.status = 'reserved' THEN
		COMMIT;
		INSERT INTO effects VALUES (k, 'new');
		COMMIT;
		said := format('"%s by the new code"', k);
		PERFORM idem.idem_complete(k, jsonb_build_object('code', 200,
			'body', said::jsonb), token => a.token, scope => 'user:1');
	END IF;
END;
$$;
END

admin(block('CREATE VIEW public.old_keys'));
my $unfit = block('NOT BETWEEN 1 AND 1024');
is(admin($unfit), '', 'all keys are fit');
is(admin(<<"END"), "user:9|a\nb\nuser:9| \nuser:9|", 'unfit ones are found');
BEGIN;
INSERT INTO idempotency_keys (user_id, idempotency_key, request_params, recovery_point)
VALUES (9, E'a\\nb', '{}', ''), (9, ' ', '{}', ''), (9, '', '{}', '');
$unfit
END

#
# Callers: each session calls keys at random, as long as it is told to
#
my %heard;         # key => { body => 1 }
my %sqlstates;     # code => { sqlstate => 1 }
my @races = map { "race $_" } 1 .. 120;

sub caller_of
{
	my ($code, $keys) = @_;

	return { code => $code, keys => $keys, session => app() };
}

sub call
{
	my ($caller) = @_;

	$caller->{key} = $caller->{keys}[ rand @{ $caller->{keys} } ];
	$caller->{session}->send("CALL $caller->{code}_code('$caller->{key}')");
	return;
}

sub take_in
{
	my ($caller) = @_;
	my $answer = $caller->{session}->answer;
	my $said = $answer->{rows}[0][0] // '';

	$sqlstates{ $caller->{code} }{ $answer->{sqlstate} } = $answer->{message}
	  if $answer->{sqlstate};
	$heard{ $caller->{key} }{$said} = 1 if $said =~ /^"/;
	return;
}

# Let the callers call until the administrator's query answers "t"
sub call_until
{
	my ($callers, $sql) = @_;
	my $until = session($node, dbname => 'shop');
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	call($_) foreach @$callers;
	for (my $n = 0;; $n++)
	{
		my ($ready) = IdemTest::Session->wait_for(
			[ map { $_->{session} } @$callers ], 1) or die 'nobody answers';
		my ($caller) = grep { $_->{session} == $ready } @$callers;

		take_in($caller);
		call($caller);
		last if $n % 20 == 0 && $until->query($sql) eq 't';
		die "never: $sql" if time > $end;
	}
	take_in($_) foreach @$callers;
	return;
}

# A holder of the old code that is in the middle of it during the move, and
# finishes in the transaction that reserves
my ($holder, $writer) = (app(), app());
is($holder->query(q{SELECT old_reserve('held')}), 'act', 'the old code holds a key');
is($holder->query(q{SELECT old_reserve('held too')}), 'act', '... and another');

#
# 3. and 4. The copy, the old code at work
#
my @old = map { caller_of('old', [ @races[ 0 .. 39 ] ]) } 1 .. 3;
call_until(\@old, 'SELECT count(*) >= 20 FROM effects');

my $copy = block("WHERE status <> 'in_progress'");
admin($copy);
admin($copy);

# the bridge waits for whoever has written the table, and lets others read
$writer->query('BEGIN');
is($writer->query(q{SELECT old_reserve('writer')}), 'act', 'a transaction is writing');
my $rest = block('CREATE TRIGGER old_keys_bridge');
my $mover = session($node, dbname => 'shop');
{
	# one statement at a time, as psql does it; the function is one
	my @parts = split(/^(CREATE FUNCTION.*?^\$\$;)$/ms, $rest);
	my @statements = map { /^CREATE FUNCTION/ ? $_ : split(/;\n/, $_) } @parts;
	is(scalar(grep { /^\s*(BEGIN|COMMIT)\b/ } @statements), 2, 'the rest is one transaction');
	shift @statements until $statements[0] =~ /BEGIN/;
	$mover->query(shift @statements);
	my $lock = shift @statements;
	$mover->send($lock);
	ok(eventually(session($node), <<'END'), 'the move waits for it');
SELECT count(*) = 1 FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND NOT granted
END
	is(app()->query(q{SELECT response_body FROM idempotency_keys
		WHERE idempotency_key = 'declined'}), '"declined"', '... while others read');
	$writer->query('COMMIT');
	$mover->answer;
	is($mover->{answer}{sqlstate}, '', '... and goes on');
	my @waiting = map { caller_of('old', [ @races[ 20 .. 59 ] ]) } 1 .. 3;
	call($_) foreach @waiting;
	foreach my $statement (grep { /\S/ } @statements)
	{
		$mover->query($statement);
	}
	take_in($_) foreach @waiting;
}

my $check = block('AS new_status');
is(admin($check), '', 'nothing is missing, nothing differs');
like(admin("BEGIN; UPDATE idem.idempotency_keys SET result = '0' WHERE key = 'k77'; $check"),
	qr/user:3\|k77/, 'the check finds what differs');
like(admin("BEGIN; DELETE FROM idem.idempotency_keys WHERE key = 'stale'; $check"),
	qr/user:1\|stale/, '... and what is missing');

#
# What is heard, case by case
#
my ($new, $old) = (app(), app());

sub new_hears
{
	my ($key, $user) = @_;

	return $new->try("SELECT concat_ws(' ', status, attempt, maybe_ran, result)
		FROM new_reserve('$key', @{[ $user // 1 ]})");
}

sub old_hears
{
	my ($key) = @_;

	return $old->try("SELECT old_reserve('$key')");
}

is(new_hears('finished'), 'done 1 f {"body": {"order": 1}, "code": 200}', 'finished');
is(new_hears('finished', 2), 'done 1 f {"body": {"order": 2}, "code": 201}', 'by user');
is(new_hears('empty'), 'done 1 f {"body": null, "code": 204}', 'without a body');
is(new_hears('declined'), 'failed 1 f {"body": "declined", "code": 402}', 'declined');
is(new_hears('error'), 'failed 1 f {"body": "oops", "code": 500}', 'an error');
is(old_hears('declined'), '"declined"', 'the old code still replays its own');
is($new->try(q{SELECT idem_reserve('finished', request => '{}', scope => 'user:1')}),
	'IK001', 'another request');
is(session($node, dbname => 'shop', user => 'stranger')->try(
		q{SELECT idem.idem_reserve('finished', scope => 'user:1')}),
	'42501', 'another role');
is(new_hears('past'), 'reserved 1 f', 'past its memory');
is(new_hears('ancient'), 'expired 1 f', 'too old to be taken over');
is(old_hears('ancient'), '55P03', '... by anybody');

is(new_hears('held'), 'in_progress 1 f', 'held by the old code');
is(old_hears('held'), 'locked', '... as it knows');
is($holder->try(q{SELECT old_finish('held', '"held"')}), '', 'it finishes');
is(new_hears('held'), 'done 1 f {"body": "held", "code": 200}', '... for all');
is($holder->try(q{SELECT old_finish('held too', '"no"', 404)}), '', 'it fails');
is(new_hears('held too'), 'failed 1 f {"body": "no", "code": 404}', '... for all');

is(new_hears('writer'), 'in_progress 1 f', 'reserved while the move waited');
is($writer->try(q{SELECT old_finish('writer', '"late"')}), '', '... it finishes');
is(new_hears('writer'), 'done 1 f {"body": "late", "code": 200}', '... for all');

is(new_hears('stale'), 'reserved 2 t', 'left behind by the old code: taken over');
is($holder->try(q{SELECT old_finish('stale', '"late"')}), '55P03', '... it comes too late');
is(old_hears('stale'), '55P03', '... and gets it no more');
is(old_hears('stale too'), 'act', 'taken over by the old code');
is(new_hears('stale too'), 'in_progress 2 t', '... and so not by the new');

is(old_hears('unlocked'), 'act', 'not finished: the old code tries again');
is(new_hears('unlocked'), 'in_progress 2 t', '... alone');
$old->query(q{UPDATE idempotency_keys SET locked_at = NULL WHERE idempotency_key = 'unlocked'});
is(new_hears('unlocked'), 'reserved 3 t', '... gives up: the new code verifies');
is(old_hears('unlocked'), '55P03', '... alone');

is(new_hears('fresh'), 'reserved 1 f', 'held by the new code');
is(old_hears('fresh'), '55P03', '... kept from the old');
is(admin(q{SELECT count(*) FROM idempotency_keys WHERE idempotency_key = 'fresh'}), '0',
	'... which leaves nothing behind');
is(old_hears('old fresh'), 'act', 'held by the old code');
is(new_hears('old fresh'), 'in_progress 1 f', '... kept from the new');

#
# 6. Both kinds of code at once
#
my @both = map { (caller_of('old', \@races), caller_of('new', \@races)) } 1 .. 3;
call_until(\@both, <<'END');
SELECT count(DISTINCT key) = 120 AND count(*) FILTER (WHERE who = 'new') > 5
FROM effects WHERE key LIKE 'race %'
END
is(admin($check), '', 'still nothing is missing, nothing differs');

#
# 7. The new code alone
#
admin(block('REVOKE INSERT, UPDATE, DELETE'));
is(old_hears('straggler'), '42501', 'a straggler is refused');
is(admin($check), '', 'checked once more');
admin(block('DROP TRIGGER old_keys_bridge'));
is(app()->try('SELECT FROM idem.idempotency_keys'), '42501', 'the table is closed again');
my @new = map { caller_of('new', [ @races, 'last' ]) } 1 .. 3;
call_until(\@new, "SELECT count(*) = 1 FROM effects WHERE key = 'last'");
admin(block('DROP TABLE public.idempotency_keys'));

is(admin('SELECT key FROM effects GROUP BY key HAVING count(*) > 1'), '',
	'no key has run twice');
is(admin("SELECT count(*) FROM effects WHERE key LIKE 'race %'"), '120',
	'... and every one has');
is(admin(q{SELECT string_agg(DISTINCT who, ' ' ORDER BY who) FROM effects
		WHERE split_part(key, ' ', 2)::integer > 60 AND key LIKE 'race %'}), 'new old',
	'both kinds of code have won, side by side');
is(join(', ', map { "$_: " . join(' ', keys %{ $heard{$_} }) }
		grep { keys %{ $heard{$_} } > 1 } sort keys %heard), '',
	'everybody heard the same of a key');
is_deeply([ sort keys %{ $sqlstates{old} // {} } ], ['55P03'],
	'the old code heard of no error but the documented one');
is_deeply($sqlstates{new} // {}, {}, 'the new code heard of none');

#
# Other shapes: the same copies through other views
#
$copy =~ s/public\.old_keys/public.old_responses/;
my ($rest_copy) = $rest =~ /^(INSERT INTO idem.*?DO NOTHING;)/ms;
$rest_copy =~ s/public\.old_keys/public.old_documents/;
admin(<<'END');
CREATE TABLE responses (key text PRIMARY KEY, response jsonb, created_at timestamptz);
INSERT INTO responses VALUES ('r1', '{"n": 1}', now()), ('r2', NULL, now());
CREATE TABLE documents (document jsonb, created_at timestamptz);
INSERT INTO documents VALUES
	('{"idempotencyKey": "d1", "request": {}, "response": {"statusCode": 200, "body": 1}}', now()),
	('{"idempotencyKey": "d2", "request": {}, "response": {"statusCode": 409}}', now()),
	('{"idempotencyKey": "d3", "request": {}}', now());
END
admin(block('CREATE VIEW public.old_responses') . $copy
	. 'DROP VIEW old_responses;');
admin(block('CREATE VIEW public.old_documents') . $rest_copy
	. 'DROP VIEW old_documents;');
is(heard(app(), 'r1', q{request => '"any"'}), 'done 1 f {"n": 1}', 'key and response');
is(heard(app(), 'r2'), 'reserved 1 f', '... in progress: not copied by step 3');
is(heard(app(), 'd1'), 'done 1 f {"body": 1, "statusCode": 200}', 'a document');
is(heard(app(), 'd2'), 'failed 1 f {"statusCode": 409}', '... with an error');
is(heard(app(), 'd3'), 'in_progress 1 f', '... in progress');

# From Redis
admin('SET search_path = idem; ' . block('create_missing => true'));
is(heard(app(), 'charge:1'), 'done 1 f {"id": "ch_1"}', 'from Redis');

#
# To another server, by logical replication
#
my $next = PostgreSQL::Test::Cluster->new('next');
$next->init;
$next->append_conf('postgresql.conf', <<'END');
autovacuum = off
fsync = off
shared_preload_libraries = idem_tool
idem_tool.naptime = 100ms
END
$next->start;
$next->safe_psql('postgres', $_) foreach 'CREATE DATABASE shop', 'CREATE ROLE my_app LOGIN';
admin(block('CREATE PUBLICATION'));
my $subscribe = block('CREATE SUBSCRIPTION');
my $connection = $node->connstr . ' dbname=shop';
$subscribe =~ s/'host=old dbname=shop'/'$connection'/ or die;
$next->safe_psql('shop', $subscribe);
$next->safe_psql('shop', "SELECT idem.idem_grant('my_app')");
$next->poll_query_until('shop',
	"SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel") or die;
is(new_hears('moving'), 'reserved 1 f', 'reserved while it replicates');
$new->query(q{SELECT idem_complete('k1', '1', scope => 'new') FROM idem_reserve('k1', scope => 'new')});
my $arrived = block('confirmed_flush_lsn');
ok($node->poll_query_until('shop', $arrived), 'all has arrived');
my $rows = 'SELECT * FROM idem.idempotency_keys ORDER BY scope, key';
$next->safe_psql('shop', block('DROP SUBSCRIPTION'));
is($next->safe_psql('shop', $rows), admin($rows), 'row by row');
my $there = session($next, dbname => 'shop', user => 'my_app');
is($there->query(q{SELECT (idem.idem_reserve('k1', scope => 'new')).result}), '1', 'it replays');
cmp_ok($there->query(q{SELECT token FROM idem.idem_reserve('after')}), '>',
	admin('SELECT max(token) FROM idem.idempotency_keys'), 'tokens go on rising');
$next->stop('fast');

#
# Out again; without the worker, which would mark the lapsed lease before us
#
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
$new = app();
$new->query(q{SELECT idem_reserve('released'), idem_release('released')});
$new->query(q{SELECT idem_reserve('no result'), idem_complete('no result')});
$new->query(q{SELECT idem_reserve('lapsed', '1 ms')});
ok(eventually(session($node, dbname => 'shop'),
		q{SELECT expires_at <= now() FROM idem.idempotency_keys WHERE key = 'lapsed'}),
	'a lease is over');
like(admin(block("status = 'in_progress' AND expires_at > now()")), qr/^user:1\|moving\|/m,
	'what is in progress');

my $settled = q{SELECT scope, key, status, result FROM %s
	WHERE status IN ('done', 'failed') ORDER BY scope, key};
my $before = admin(sprintf($settled, 'idem.idempotency_keys'));
admin(block('LOCK TABLE idem.idempotency_keys IN SHARE MODE'));
is(admin(block('EXCEPT')), '', 'all results are there');

my $dump = sub {
	my ($out, $err) = run_command([ 'pg_dump', '-h', $node->host, '-p', $node->port, @_, 'shop' ]);
	return $out;
};
my $of_table = $dump->('-t', 'idem.idempotency_keys');
like($of_table, qr/^COPY idem\.idempotency_keys /m, 'pg_dump -t writes the rows');
unlike($of_table, qr/CREATE TABLE|setval/, '... and nothing else');
like($dump->('-t', 'public.idempotency_keys'), qr/CREATE TABLE public\.idempotency_keys/,
	'the plain table is dumped whole');

admin('CREATE VIEW mine AS SELECT key FROM idem.idempotency_keys');
my $in_the_way = refused('DROP EXTENSION idem_tool');
like($in_the_way, qr/view mine depends on/, 'a view is in the way');
like($in_the_way, qr/function new_reserve.* depends on type/, '... and a function');
admin('DROP VIEW mine; DROP FUNCTION new_reserve');
admin(block('DROP EXTENSION idem_tool'));
is(admin(q{SELECT to_regclass('idem.idempotency_keys')}), '', 'our table is gone');
is(admin(sprintf($settled, 'public.idempotency_keys')), $before, '... theirs has all results');
cmp_ok(scalar(split(/\n/, $before)), '>', 2100, '... and those are many');
is(admin(q{SELECT string_agg(key || ' ' || status || ' ' || (expires_at > now()), ', ' ORDER BY key)
	FROM idempotency_keys WHERE key IN ('released', 'lapsed', 'moving', 'no result')}),
	'lapsed expired true, moving in_progress true, no result done true, released released true',
	'... and says what is not settled');
like(refused("INSERT INTO idempotency_keys SELECT * FROM idempotency_keys LIMIT 1"),
	qr/idempotency_keys_pkey/, 'one row for each key');

$new->drop;
is(join("\n", map { $blocks[$_] } grep { !$was_run{$_} } 0 .. $#blocks), '',
	'every statement of the document was run');
$node->stop('fast');

done_testing();
