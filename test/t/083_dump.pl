# pg_dump and pg_restore keep who owns what and who may do what, by whichever of
# those two who can the dump is made and restored: the owner of the database,
# who is no superuser, and a superuser.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_arena('dump');
my $dir = PostgreSQL::Test::Utils::tempdir();

# Who owns what of the extension, and all grants, that of the schema included
my $privileges = <<'END';
SELECT 'schema', nspowner::regrole::text, a::text
FROM pg_namespace CROSS JOIN unnest(nspacl) AS a WHERE nspname = 'idem'
UNION ALL
SELECT i.identity, o.owner::regrole::text, a::text
FROM pg_depend AS d
JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idem_tool'
CROSS JOIN pg_identify_object(d.classid, d.objid, 0) AS i
CROSS JOIN LATERAL (
	SELECT relowner, relacl
	FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
	UNION ALL
	SELECT relowner, attacl FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
	WHERE d.classid = 'pg_class'::regclass AND attrelid = d.objid AND attacl IS NOT NULL
	UNION ALL
	SELECT proowner, proacl
	FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
	UNION ALL
	SELECT typowner, typacl
	FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid) AS o (owner, acl)
LEFT JOIN LATERAL unnest(o.acl) AS a ON true
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
ORDER BY 1, 3
END

# Lines of the one that the other has not, either way
sub difference
{
	my ($got, $wanted) = @_;
	my %got = map { $_ => 1 } split(/\n/, $got);
	my %wanted = map { $_ => 1 } split(/\n/, $wanted);

	return join("\n",
		(map { "more: $_" } grep { !$wanted{$_} } sort keys %got),
		(map { "less: $_" } grep { !$got{$_} } sort keys %wanted));
}

my $rows = <<'END';
SELECT k::text FROM idem.idempotency_keys AS k
UNION ALL SELECT a::text FROM idem.idem_audit AS a
UNION ALL SELECT t::text FROM idem.idem_tools AS t
ORDER BY 1
END

my $database = new_arena('template0');
my $owner = as_role($database, 'dbo');
my $superuser = as_role($database);

$owner->query('CREATE SCHEMA idem');

# before the extension comes
$owner->query('GRANT USAGE ON SCHEMA idem TO nobody');
$owner->query('CREATE EXTENSION idem_tool SCHEMA idem');
$owner->query($_)
  foreach q{SELECT idem.idem_grant('app')}, q{SELECT idem.idem_grant('victim')},
  q{SELECT idem.idem_grant('ops', 'operator')},
  q{SELECT idem.idem_grant('nobody', 'monitor')},

  # and what an administrator gives and takes by hand
  'REVOKE EXECUTE ON FUNCTION idem.idem_release(text, bigint, text) FROM victim',
  'GRANT SELECT (key) ON idem.idempotency_keys TO app',
  'REVOKE EXECUTE ON FUNCTION idem.idem_may_act(text) FROM PUBLIC',
  'GRANT EXECUTE ON FUNCTION idem.idem_may_act(text) TO app, ops, nobody';
$superuser->query($_) foreach treasure();
my $expected = $owner->query($privileges);
my $contents = $owner->query($rows);

like($expected, qr/^schema\|dbo\|nobody=U\/dbo$/m, 'the schema has its grant');
like($expected, qr/^idem.idempotency_keys\|pg_database_owner\|/m,
	'the tables belong to whoever owns the database');

foreach my $dumper ('dbo', $superuser->query('SELECT current_user'))
{
	my $dump = "$dir/$dumper";

	$node->command_ok([ 'pg_dump', '-U', $dumper, '-Fc', '-f', $dump, $database ],
		"dumped by $dumper");
	foreach my $restorer ('dbo', $superuser->query('SELECT current_user'))
	{
		my $name = "dump by $dumper, restored by $restorer";
		my $copy = new_arena('template0');

		$node->command_ok(
			[ 'pg_restore', '-U', $restorer, '--exit-on-error', '-d', $copy, $dump ],
			$name);
		my $restored = as_role($copy, 'dbo');
		is(difference($restored->query($privileges), $expected),
			'', "$name: owners and privileges");
		is($restored->query($rows), $contents, "$name: the rows");

		# and once more, for what the second dump takes for changed
		$node->command_ok(
			[ 'pg_dump', '-U', 'dbo', '-Fc', '-f', "$dump.again", $copy ],
			"$name: dumped again");
		my $again = new_arena('template0');
		$node->command_ok(
			[ 'pg_restore', '-U', 'dbo', '--exit-on-error', '-d', $again, "$dump.again" ],
			"$name: restored again");
		is(difference(as_role($again, 'dbo')->query($privileges), $expected),
			'', "$name: owners and privileges, again");

		is( as_role($copy, 'app')->query(q{SELECT status FROM idem.idem_reserve('new')}),
			'reserved', "$name: a caller goes on");
		is( as_role($copy, 'victim')->try(q{SELECT idem.idem_release('treasure open', 2)}),
			'42501', "$name: what was taken stays taken");
		is( as_role($copy, 'ops')->query('SELECT expired FROM idem.idem_sweep()'),
			'0', "$name: an operator sweeps");
	}
}

# Whoever may read all data has not what it takes, and does not end well
$superuser->query('GRANT pg_read_all_data TO nobody');
$node->command_fails([ 'pg_dump', '-U', 'nobody', '-f', "$dir/nobody", $database ],
	'a dump by a role that sees no rows fails');
$superuser->query('REVOKE pg_read_all_data FROM nobody');
done_testing();
