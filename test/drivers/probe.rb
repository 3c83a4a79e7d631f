# pg and ActiveRecord

require "json"
require "pg"
require "active_record"

def row(*cells)
  puts "| #{cells.join(' | ')} |"
end

# What the server or the driver says against it
def outcome
  yield
rescue ActiveRecord::StatementInvalid => error
  error.cause.respond_to?(:result) && error.cause.result ? sqlstate(error.cause) : "the driver refuses"
rescue PG::Error => error
  error.result ? sqlstate(error) : "the driver refuses"
rescue StandardError
  "the driver refuses"
end

def sqlstate(error)
  error.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

# The rows of a driver whose query returns a statement's first value
def facts(name, json, duration, back: nil, &query)
  value = lambda { |text, *arguments| outcome { query.call(text, arguments) } }
  result = lambda do |key, result|
    token = value.("SELECT token FROM idem_reserve($1)", key)
    said = value.("SELECT idem_complete($1, $2, $3)", key, result, token)
    next said unless [true, "t"].include?(said)
    value.("SELECT coalesce('`' || result::text || '`', 'SQL NULL') FROM idem_lookup($1)", key)
  end
  lease = lambda do |key, ttl|
    said = value.("SELECT status FROM idem_reserve($1, $2)", key, ttl)
    next said unless said == "reserved"
    value.("SELECT extract(epoch FROM expires_at - reserved_at)::integer || ' s' FROM idem_lookup($1)", key)
  end

  cells = [{ "a" => 1 }, [1, 2], "ok"].each_with_index.map { |v, n| result.("#{name}#{n}", v) }
  good = [{ "a" => 1 }, [1, 2], "ok", "a\0b"].each_with_index.map { |v, n| result.("#{name}json#{n}", v.to_json) }
  raise good.inspect unless good[0, 3] == ['`{"a": 1}`', "`[1, 2]`", '`"ok"`']
  row "jsonb", name, *cells, good[3],
      value.("SELECT result FROM idem_reserve($1)", "#{name}json0").class, json
  row "times", name, duration ? "`5.minutes`" : "–", duration ? lease.("#{name}5min", duration) : "–",
      lease.("#{name}300", 300), lease.("#{name}text", "5 min"),
      value.("SELECT token FROM idem_reserve($1)", "#{name}token").class,
      value.("SELECT idem_complete($1, NULL, $2)", "#{name}token", nil)
end

puts "# pg #{PG::VERSION}", "# ActiveRecord #{ActiveRecord.version}"

#
# pg
#
db = PG.connect
first = ->(on, text, arguments) { on.exec_params(text, arguments).values[0][0] }
seen = lambda do |key|
  first.(db, "SELECT count(*) FROM idem_lookup($1)", [key]).to_i.zero? ? "not committed" : "committed"
end
two_phase = "SELECT status FROM idem_reserve($1, two_phase => true)"
first.(db, "SELECT idem_reserve($1)", ["rb:plain"])
row "transactions", "ruby-pg", seen.("rb:plain"), outcome { first.(db, two_phase, ["rb:two"]) },
    outcome { db.transaction { first.(db, two_phase, ["rb:block"]) } }, "nothing to do"
facts("ruby-pg", "`value.to_json`", nil) { |text, arguments| first.(db, text, arguments) }

rival = PG.connect
rival.exec("BEGIN; SELECT idem_reserve('rb:late')")
db.exec("SET statement_timeout = '200ms'")
said = outcome { db.exec("SELECT idem_reserve('rb:late', wait => '1 min')") }
rival.exec("ROLLBACK")
row "time-outs", "ruby-pg", "`statement_timeout`", said, seen.("rb:late")
db.exec("RESET statement_timeout")

#
# ActiveRecord
#
ActiveRecord::Base.establish_connection(adapter: "postgresql")
ar = ActiveRecord::Base.connection
ar.execute("SELECT idem_reserve('ar:plain')")
ar_two = ->(key) { ar.select_value("SELECT status FROM idem_reserve('#{key}', two_phase => true)") }
row "transactions", "ActiveRecord", seen.("ar:plain"), outcome { ar_two.("ar:two") },
    outcome { ActiveRecord::Base.transaction { ar_two.("ar:block") } },
    "not within `transaction`; not in transactional tests"
facts("ActiveRecord", "`value.to_json`", 5.minutes) do |text, arguments|
  ar.exec_query(text, "idem", arguments.map { |a| ActiveRecord::Relation::QueryAttribute.new("", a, ActiveRecord::Type::Value.new) }).rows[0][0]
end

# the query cache, which each request has: a statement that is the same is not
# sent, and its old answer heard again
retried = ar.cache { Array.new(2) { ar.select_value("SELECT status FROM idem_reserve('ar:cached')") } }
raise retried.inspect unless retried == %w[reserved reserved]
honest = ar.cache do
  ar.uncached { Array.new(2) { ar.select_value("SELECT status FROM idem_reserve('ar:uncached')") } }
end
raise honest.inspect unless honest == %w[reserved in_progress]
executed = ar.cache { Array.new(2) { ar.execute("SELECT status FROM idem_reserve('ar:executed')").values[0][0] } }
raise executed.inspect unless executed == %w[reserved in_progress]
puts "# ActiveRecord: a cached reservation is answered `reserved` twice"

# a SELECT that writes passes where writes are prevented
ar_prevented = ActiveRecord::Base.while_preventing_writes { ar.select_value("SELECT status FROM idem_reserve('ar:prevented')") }
raise ar_prevented unless ar_prevented == "reserved"

# an exception leaves nothing
begin
  ActiveRecord::Base.transaction do
    ar.execute("SELECT idem_reserve('ar:fails')")
    raise ArgumentError
  end
rescue ArgumentError
  raise "left" unless seen.("ar:fails") == "not committed"
end
