// lib/pq and pgx, both below database/sql; pgx by itself as well.

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	_ "github.com/jackc/pgx/v4/stdlib"
	"github.com/lib/pq"
)

var ctx = context.Background()

func row(cells ...interface{}) {
	text := "|"
	for _, cell := range cells {
		text += fmt.Sprintf(" %v |", cell)
	}
	fmt.Println(text)
}

// What the server or the driver says against it
func refusal(err error) interface{} {
	var fromPq *pq.Error
	var fromPgx *pgconn.PgError
	if errors.As(err, &fromPq) {
		return string(fromPq.Code)
	}
	if errors.As(err, &fromPgx) {
		return fromPgx.Code
	}
	if errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
		return "deadline exceeded"
	}
	return "the driver refuses"
}

type queryer interface {
	QueryRowContext(context.Context, string, ...interface{}) *sql.Row
}

func outcome(db queryer, query string, arguments ...interface{}) interface{} {
	var value interface{}
	if err := db.QueryRowContext(ctx, query, arguments...).Scan(&value); err != nil {
		return refusal(err)
	}
	if bytes, ok := value.([]byte); ok {
		return string(bytes)
	}
	return value
}

func seen(db queryer, key string) string {
	if outcome(db, "SELECT count(*) FROM idem_lookup($1)", key) == int64(0) {
		return "not committed"
	}
	return "committed"
}

func result(db queryer, key string, value interface{}) interface{} {
	token := outcome(db, "SELECT token FROM idem_reserve($1)", key)
	said := outcome(db, "SELECT idem_complete($1, $2, $3)", key, value, token)
	if said != true {
		return said
	}
	return outcome(db, "SELECT coalesce('`' || result::text || '`', 'SQL NULL') FROM idem_lookup($1)", key)
}

func lease(db queryer, key string, ttl interface{}) interface{} {
	said := outcome(db, "SELECT status FROM idem_reserve($1, $2)", key, ttl)
	if said != "reserved" {
		return said
	}
	return outcome(db, "SELECT extract(epoch FROM expires_at - reserved_at)::integer || ' s' FROM idem_lookup($1)", key)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Wait until nobody is waiting for the key any more
func settled(db queryer) {
	for outcome(db, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"+
		" AND pid <> pg_backend_pid() AND query LIKE '%$1, wait%'") != int64(0) {
		time.Sleep(10 * time.Millisecond)
	}
}

// A proxy that loses the answer to the first reservation, once it was given
func lossy() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	port := os.Getenv("PGPORT")
	if port == "" {
		port = "5432"
	}
	lose := true
	go func() {
		for {
			client, err := listener.Accept()
			check(err)
			server, err := net.Dial("unix", os.Getenv("PGHOST")+"/.s.PGSQL."+port)
			check(err)
			asked := false
			go func() {
				io.Copy(writer(func(message []byte) (int, error) {
					asked = asked || strings.Contains(string(message), "idem_reserve")
					return server.Write(message)
				}), client)
				server.Close()
			}()
			go func() {
				io.Copy(writer(func(answer []byte) (int, error) {
					// the row, not the description of the statement
					if asked && lose && strings.Contains(string(answer), "SELECT 1") {
						lose = false
						client.Close()
						return 0, io.EOF
					}
					return client.Write(answer)
				}), server)
				client.Close()
			}()
		}
	}()
	return fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
}

type writer func([]byte) (int, error)

func (w writer) Write(bytes []byte) (int, error) {
	return w(bytes)
}

// What a caller hears when the answer to his reservation is lost
func lost(driver, key string, holder interface{}) interface{} {
	db, err := sql.Open(driver, "sslmode=disable host=127.0.0.1 port="+lossy())
	check(err)
	defer db.Close()
	answer := outcome(db, "SELECT status FROM idem_reserve($1, holder => $2)", key, holder)
	if answer == "the driver refuses" {
		return "an error"
	}
	return answer
}

func facts(name, driver string, array interface{}) {
	db, err := sql.Open(driver, "sslmode=disable")
	check(err)
	defer db.Close()
	outcome(db, "SELECT idem_reserve($1)", name+"plain")
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	row("transactions", name, seen(db, name+"plain"),
		outcome(db, "SELECT status FROM idem_reserve($1, two_phase => true)", name+"two"),
		outcome(tx, "SELECT status FROM idem_reserve($1, two_phase => true)", name+"block"),
		"nothing to do")
	tx.Rollback()

	outcome(db, "SELECT idem_complete($1, '[1]', token) FROM idem_reserve($1)", name+"ok")
	var value interface{}
	check(db.QueryRowContext(ctx, "SELECT result FROM idem_reserve($1)", name+"ok").Scan(&value))
	row("jsonb", name, result(db, name+"map", map[string]int{"a": 1}), result(db, name+"array", array),
		result(db, name+"text", "ok"), result(db, name+"nul", `"a\u0000b"`),
		strings.Replace(fmt.Sprintf("%T", value), "[]uint8", "[]byte", 1), "the string of `json.Marshal`")

	row("times", name, "`time.Duration`", lease(db, name+"5min", 5*time.Minute), lease(db, name+"300", 300),
		lease(db, name+"string", "5 min"), fmt.Sprintf("%T", outcome(db, "SELECT token FROM idem_reserve($1)", name+"t")),
		outcome(db, "SELECT idem_complete($1, NULL, $2)", name+"t", nil))

	row("repetition", name, lost(driver, name+"lost", nil), lost(driver, name+"held", "me"))

	rival, err := db.BeginTx(ctx, nil)
	check(err)
	outcome(rival, "SELECT idem_reserve($1)", name+"late")
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	var status string
	err = db.QueryRowContext(limited, "SELECT status FROM idem_reserve($1, wait => '1 min')", name+"late").Scan(&status)
	settled(db)
	rival.Rollback()
	row("time-outs", name, "a context with a deadline", refusal(err), seen(db, name+"late"))
}

func main() {
	facts("lib/pq", "postgres", []int{1, 2})
	facts("pgx by database/sql", "pgx", []int{1, 2})

	// pgx by itself encodes by the parameter's type in the server
	db, err := pgx.Connect(ctx, "sslmode=disable")
	check(err)
	defer db.Close(ctx)
	object := func(value interface{}, key string) interface{} {
		var said bool
		var text string
		var token int64
		check(db.QueryRow(ctx, "SELECT token FROM idem_reserve($1)", key).Scan(&token))
		if err := db.QueryRow(ctx, "SELECT idem_complete($1, $2, $3)", key, value, token).Scan(&said); err != nil {
			return refusal(err)
		}
		check(db.QueryRow(ctx, "SELECT coalesce('`' || result::text || '`', 'SQL NULL') FROM idem_lookup($1)", key).Scan(&text))
		return text
	}
	length := func(ttl interface{}, key string) interface{} {
		var text string
		if _, err := db.Exec(ctx, "SELECT idem_reserve($1, $2)", key, ttl); err != nil {
			return refusal(err)
		}
		check(db.QueryRow(ctx, "SELECT extract(epoch FROM expires_at - reserved_at)::integer || ' s' FROM idem_lookup($1)", key).Scan(&text))
		return text
	}
	var back interface{}
	array, nul, text := object([]int{1, 2}, "pgx:array"), object("\"a\\u0000b\"", "pgx:nul"), object("ok", "pgx:text")
	check(db.QueryRow(ctx, "SELECT result FROM idem_reserve('pgx:array')").Scan(&back))
	row("jsonb", "pgx", object(map[string]int{"a": 1}, "pgx:map"), array, text, nul,
		fmt.Sprintf("%T", back), "the value itself; a string is taken for JSON")
	var token interface{}
	check(db.QueryRow(ctx, "SELECT token FROM idem_reserve('pgx:t')").Scan(&token))
	_, err = db.Exec(ctx, "SELECT idem_complete('pgx:t', NULL, $1)", nil)
	row("times", "pgx", "`time.Duration`", length(5*time.Minute, "pgx:5min"), length(300, "pgx:300"),
		length("5 min", "pgx:string"), fmt.Sprintf("%T", token), refusal(err))
}
