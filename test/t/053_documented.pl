# What the documentation says of functions, settings, columns and errors is
# what is there, and its examples do what they say.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IdemTest::Blocks;
use PostgreSQL::Test::Utils;
use Test::More;

my %docs = map { $_ => slurp_file("$FindBin::RealBin/../../docs/$_.md") }
  qw(reference operations operations-worker keys);
my $node = new_node('documented', conf => 'shared_preload_libraries = idem_tool');
my $s = session($node);

# The rows of the first table behind a heading
sub table
{
	my ($name, $heading) = @_;
	my ($table) = $docs{$name} =~ /^#+ $heading\n.*?^\|(?:---\|)+\n(.*?)^(?!\|)/ms
	  or die "no table below $heading";

	return map { s/^\| | \|$//g; [ map { s/`//gr } split(/ \| /, $_) ] }
	  split(/\n/, $table);
}

#
# Functions: each signature of the documentation is that of the function
#
sub plain
{
	my ($signature) = @_;

	for ($signature)
	{
		s/timestamp with time zone/timestamptz/g;
		s/::[a-z]+(?: [a-z]+)*//g;
		s/ DEFAULT / = /g;
		s/'00:00:00'/'0'/g;
		s/\s+/ /g;
	}
	return $signature;
}

my %functions = map { split(/\|/, $_, 2) } split(/\n/, $s->query(<<'END'));
SELECT proname, format('(%s) → %s', coalesce((SELECT string_agg(a, ', ')
		FROM unnest(string_to_array(pg_get_function_arguments(p.oid), ', ')) AS a
		WHERE a NOT LIKE 'OUT %'), ''), CASE WHEN prorettype = 'record'::regtype THEN
		'(' || (SELECT string_agg(n, ', ' ORDER BY o)
			FROM unnest(proargnames, proargmodes) WITH ORDINALITY AS x (n, m, o)
			WHERE m IN ('o', 't')) || ')'
	ELSE pg_get_function_result(p.oid) END)
FROM pg_proc AS p
JOIN pg_depend ON objid = p.oid AND classid = 'pg_proc'::regclass AND deptype = 'e'
JOIN pg_extension AS e ON refobjid = e.oid AND extname = 'idem_tool'
END
$_ = plain($_) foreach values %functions;
my %internal = map { $_ => 1 } qw(idem_stats_read idem_set_privileges);

my $text = join("\n", @docs{ 'reference', 'operations', 'operations-worker' });
my %documented;
while ($text =~ /(idem_\w+)\s*(\([^()]*\)(?:\s*→\s*(?:\([^()]*\)|\w+))?)/g)
{
	push @{ $documented{$1} }, $2 =~ s/\s+/ /gr;
}
foreach my $name (grep { !$internal{$_} } sort keys %functions)
{
	# a heading may leave the result out
	my ($is) = grep { $functions{$name} eq $_ || $functions{$name} eq "$_ → void" }
	  @{ $documented{$name} // [] };

	ok($is, "$name is documented as it is")
	  or diag("$functions{$name}, not\n" . join("\n", @{ $documented{$name} // [] }));
}

#
# Settings: names, defaults, who may set them
#
my %settings = map { $_->[0] => $_ }
  table('reference', 'Settings');
my %others = map { $_ => 1 } $docs{'operations-worker'} =~ /`(idem_tool\.\w+)`/g;
foreach my $row (map { [ split /\|/ ] } split(/\n/, $s->query(<<'END')))
SELECT name, context, boot_val FROM pg_settings WHERE name LIKE 'idem\_tool.%'
END
{
	my ($name, $context, $default) = @$row;
	my $documented = delete $settings{$name};

	if (!$documented)
	{
		ok($others{$name}, "$name is documented with the worker");
		next;
	}
	is($documented->[2], $context eq 'user' ? 'any user' : $context,
		"$name: who may set it");
	my $value = $documented->[1] =~ s/^''$| |(?<=d)ays?$//gr;

	$s->query("SELECT set_config('$name', '$value', false)");
	is($s->query("SELECT setting FROM pg_settings WHERE name = '$name'"),
		$default // '', "... and its default");
}
is(join(' ', keys %settings), '', 'no other settings are documented');

#
# The tables' columns, in their order
#
foreach my $of ([ 'idempotency_keys', 'Table idempotency_keys', qr/^(\S+)$/ ],
	[ 'idem_tools', 'Table idem_tools', qr/^(\S+) / ])
{
	my ($table, $heading, $column) = @$of;

	is(join(' ', map { $_->[0] =~ $column ? $1 : "?$_->[0]" } table('reference', $heading)),
		$s->query("SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute
			WHERE attrelid = '$table'::regclass AND attnum > 0 AND NOT attisdropped"),
		"$table: columns");
}
is( join(' ', map { $_->[1] } table('reference', 'Table idempotency_keys')),
	$s->query(q{SELECT replace(string_agg(format_type(atttypid, NULL), ' ' ORDER BY attnum),
			'timestamp with time zone', 'timestamptz')
		FROM pg_attribute WHERE attrelid = 'idempotency_keys'::regclass AND attnum > 0}),
	'... and their types');

#
# Errors: all of ours, and how a caller meets each of them
#
my @errors = map { split(/, /, $_->[0]) } table('reference', 'Errors');
is(join(' ', grep { /^IK/ } @errors), join(' ', map { "IK00$_" } 1 .. 8), 'our errors');

$s->query($_) foreach
  'CREATE FUNCTION noop(args jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$SELECT args$$',
  q{SELECT idem_register('noop', 'noop(jsonb)')},
  q{SELECT idem_reserve('busy', request => '1')},
  q{SELECT idem_reserve('running')},
  q{SELECT idem_complete('done', '1', token) FROM idem_reserve('done')},
  q{SELECT idem_fail('failed', '1', token) FROM idem_reserve('failed')},
  q{SELECT idem_abandon('unknown', token) FROM idem_reserve('unknown')},
  'CREATE ROLE stranger LOGIN', q{SELECT idem_grant('stranger')};
my %raised = (
	IK001 => q{idem_reserve('busy', request => '2')},
	IK002 => q{idem_complete('busy', '1', -1)},
	IK003 => q{idem_complete('busy', '1')},
	IK004 => q{idem_complete('done', '2', (SELECT token FROM idempotency_keys WHERE key = 'done'))},
	IK005 => q{idem_run('running', 'noop(jsonb)')},
	IK006 => q{set_config('idem_tool.takeover', '0', true) || idem_run('unknown', 'noop(jsonb)')},
	IK007 => q{idem_run('failed', 'noop(jsonb)')},
	IK008 => q{idem_call('noop', '{}')},
	'22004' => q{idem_reserve(NULL)},
	'22023' => q{idem_reserve('')},
	'42704' => q{idem_call('nothing', '{}')},
	'42883' => q{idem_run('k', 'nothing(jsonb)')},
	'42809' => q{idem_run('k', 'now()')},
	'54000' => q{idem_complete('busy', to_jsonb(repeat('x', 1100000)),
		(SELECT token FROM idempotency_keys WHERE key = 'busy'))});
foreach my $error (sort keys %raised)
{
	is($s->try("SELECT $raised{$error}"), $error, "$error is raised");
}
is($s->try(q{DO $$ BEGIN PERFORM idem_begin('noop', '{}', 'k'); EXCEPTION WHEN division_by_zero THEN END $$}),
	'25001', '25001 is raised');
is($s->try(q{BEGIN READ ONLY; SELECT idem_reserve('k')}), '25006', '25006 is raised');
$s->query('ROLLBACK');
is(session($node, user => 'stranger')->try(q{SELECT idem_reserve('done')}), '42501',
	'42501 is raised');
is(join(' ', grep { my $error = $_; !grep { $_ eq $error } @errors }
		keys %raised, '25001', '25006', '42501'), '', 'all of these are documented');
$s->query('TRUNCATE idempotency_keys');

#
# keys.md
#
my @made = $docs{keys} =~ /`(idem_(?:step_|call_)?key\('.*?\))`/g;
cmp_ok(scalar(@made), '>=', 5, 'examples of keys');
$s->query('CREATE TABLE arguments (args jsonb)');
$s->query(q{INSERT INTO arguments VALUES ('{"to": "a"}')});
my %keys = map { ($s->query("SELECT $_ FROM arguments") => 1) } @made;
is(scalar(keys %keys), scalar(@made), '... each makes a key of its own');

$s->query('CREATE TABLE call (request jsonb)');
$s->query(q{INSERT INTO call VALUES ('{"a": 1, "ts": 1, "token": "x"}'),
	('{"ts": 2, "trace_id": "z", "a": 1.0}')});
my ($fingerprint) = block_by('053_documented', 'docs/keys.md');
like($fingerprint // '', qr/request - '\{ts,token,trace_id\}'::text\[\]/, 'rotating fields');
my @fingerprints = split(/\n/, $s->query($fingerprint));
is($fingerprints[0], $fingerprints[1], '... are taken out');

#
# README's figures are those of the last benchmark
#
my ($readme, $results) = map { slurp_file("$FindBin::RealBin/../../$_") }
  qw(README.md docs/performance/results.md);
my ($figures) = $results =~ /^## In short\n.*?^\|---\|---\|\n(.*?)^\n/ms;
my ($quoted) = $readme =~ /^## Cost\n.*?^\|---\|---\|\n(.*?)^\n/ms;
is(scalar(split(/\n/, $figures)), 5, 'five figures in short');
is($quoted, $figures, '... as README has them');

$node->stop('fast');

done_testing();
