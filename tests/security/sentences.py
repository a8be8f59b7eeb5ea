"""Which tests attack which sentence of docs/security.md: the beginning of the sentence → `file::test`, below tests/.

An entry fits the sentences that begin with it. `NOTHING_TO_ATTACK` lists those that promise nothing: advice, headings,
and statements of what jobrunner does not do.
"""

_ATTACKED = "security/test_encryption.py::"
_ENCRYPTED = "worker/test_encryption.py::"
_ROLES = "acceptance/test_roles.py::"

TESTS: dict[str, list[str]] = {
    # Tasks
    "Payloads are data.": ["security/test_payloads.py::test_bytes_that_are_a_pickle_are_no_parameters"],
    "Parameters and results are JSON": [
        "security/test_payloads.py::test_parameters_that_do_not_fit_their_types_never_reach_the_job"
    ],
    "Nothing is pickled, and nothing in a task names code": [
        "security/test_payloads.py::test_bytes_that_are_a_pickle_are_no_parameters",
        "security/test_payloads.py::test_a_type_that_names_code_imports_and_runs_nothing",
    ],
    "Every client that can reach": [_ENCRYPTED + "test_a_task_runs_and_the_server_never_saw_what_it_was_about"],
    "The embedded server listens on a socket": [
        "unit/broker/test_server.py::test_the_first_use_starts_a_server_that_is_private_durable_and_never_evicts"
    ],
    "A folder that belongs to another user": [
        "unit/broker/test_embedded_planted.py::test_a_folder_of_another_user_is_refused",
        "unit/broker/test_embedded_planted.py::test_a_folder_that_others_may_write_is_refused_with_the_remedy",
        "unit/broker/test_embedded_planted.py::test_a_link_in_place_of_a_file_is_refused",
        "unit/broker/test_embedded_planted.py::test_a_file_of_another_user_is_refused",
        "unit/broker/test_embedded_planted.py::test_closing_leaves_no_orphan_when_something_was_renamed",
    ],
    "A password in a URL is not shown": [
        "security/test_urls.py::test_nothing_of_a_server_that_is_away_tells_the_secret",
        "security/test_urls.py::test_nothing_of_a_wrong_url_tells_the_secret",
        "security/test_urls.py::test_no_page_line_of_the_log_or_answer_has_the_password_of_a_server_that_is_there",
        "unit/broker/test_connect.py::test_a_password_is_never_shown",
    ],
    "It is not passed on in the arguments": ["security/test_payloads.py::test_no_child_has_the_url_in_its_arguments"],
    "Before a login the": ["security/test_urls.py::test_strangers_learn_nothing_of_a_server_that_is_away"],
    "The server stores the": [
        "security/test_redacted_pages.py::test_names_that_a_worker_publishes_hold_everywhere",
        "security/test_redacted_pages.py::test_names_come_from_the_environment_the_program_and_the_server_together",
    ],
    "Pages contain selected fields": [
        "security/test_redacted_pages.py::test_no_page_tells_a_viewer_a_secret",
        "security/test_redacted_pages.py::test_a_field_that_nobody_chose_to_show_is_not_shown",
        "security/test_redacted_pages.py::test_json_nested_3_000_deep_is_no_error_and_shows_no_secret",
    ],
    "In errors, logs and traces": [
        "security/test_redacted_pages.py::test_errors_are_kept_and_logged_without_the_values_behind_hidden_names",
        "security/test_redacted_pages.py::test_values_behind_names_are_hidden_in_free_text",
    ],
    "No text from the": [
        "security/test_terminal.py::test_no_command_writes_what_steers_a_terminal",
        "security/test_terminal.py::test_errors_and_tracebacks_of_commands_neither",
        "security/test_terminal.py::test_lines_of_the_log_on_a_console_neither",
    ],
    '`redact = ["iban"]` in `[tool.jobrunner]` hides': [
        "unit/cli/test_tasks.py::test_no_command_shows_what_is_to_be_redacted",
        "unit/web/test_pages.py::test_a_payload_is_text_and_its_secrets_are_hidden",
        "unit/inspector/test_search.py::test_nothing_is_found_by_what_is_hidden",
    ],
    # The dashboard
    "The dashboard by default": [
        "unit/web/test_login_links.py::test_being_on_this_machine_is_no_login",
        "unit/web/test_login_links.py::test_a_link_lets_in_one_browser_as_an_admin",
        "unit/web/test_settings.py::test_an_address_that_others_reach_needs_a_login_of_its_own",
        "acceptance/test_dashboard_login.py::test_a_proxy_with_default_settings_lets_nobody_in",
    ],
    "On any other address": [
        "unit/web/test_auth.py::test_only_a_trusted_proxy_says_who_asks",
        "unit/web/test_auth.py::test_a_wrong_token_gets_no_session",
    ],
    "Guesses of tokens and passwords are limited": [
        "unit/web/test_sessions.py::test_after_logging_out_a_copy_of_the_cookie_is_of_no_use",
        "acceptance/test_dashboard_connections.py::test_health_and_pages_answer_while_strangers_hold_connections",
        "unit/web/test_login_throttle.py::test_after_too_many_wrong_secrets_the_right_one_has_to_wait_too",
    ],
    "Viewers, operators and admins": ["unit/web/test_security.py::test_no_role_is_taken_from_the_request"],
    # Limits
    "Payloads are at most 1 MiB": ["security/test_payloads.py::test_limits_of_size_names_and_errors_hold"],
    "`max_size` keeps a queue": ["security/test_payloads.py::test_a_queue_with_a_size_takes_no_more"],
    # Roles
    "Access control lists of": [_ROLES + "test_producer_and_worker_do_all_their_work_and_nothing_is_refused"],
    "| producer |": [
        _ROLES + "test_a_producer_neither_sees_nor_orders_workers",
        _ROLES + "test_a_producer_touches_nothing_of_workers_periodics_events_and_metadata",
    ],
    "| worker |": [
        _ROLES + "test_no_role_leaves_its_prefix_or_runs_the_server",
        _ROLES + "test_who_works_or_enqueues_can_neither_read_nor_erase_audit_and_logins",
    ],
    "| operator |": [
        _ROLES + "test_operators_and_viewers_log_in_at_the_dashboard",
        _ROLES + "test_commands_note_who_did_what_with_the_operators_user",
        _ROLES + "test_no_role_leaves_its_prefix_or_runs_the_server",
    ],
    "No role has `CONFIG`,": [_ROLES + "test_no_role_leaves_its_prefix_or_runs_the_server"],
    "A dashboard and `jobrunner queues pause` work with": [
        _ROLES + "test_commands_note_who_did_what_with_the_operators_user"
    ],
    "The number of the format": [_ROLES + "test_a_producer_reads_the_format_and_sets_it_only_where_there_is_none"],
    "| viewer |": [_ROLES + "test_a_viewer_sees_all_pages_and_changes_nothing"],
    "Scripts run with the rights": [_ROLES + "test_a_viewer_sees_all_pages_and_changes_nothing"],
    # Encryption
    "With keys, payloads and results are encrypted": [
        _ENCRYPTED + "test_a_task_runs_and_the_server_never_saw_what_it_was_about"
    ],
    "Keys are 32 random bytes": [
        _ENCRYPTED + "test_keys_come_from_the_environment_and_never_from_the_file_of_the_project",
        _ENCRYPTED + "test_wrong_settings_are_refused_without_showing_a_key",
    ],
    "`payload_encryption` and `require_encryption` may": [
        _ENCRYPTED + "test_keys_come_from_the_environment_and_never_from_the_file_of_the_project"
    ],
    "To begin: configure the": [_ENCRYPTED + "test_without_that_plain_tasks_go_on_beside_encrypted_ones"],
    "To rotate keys: add": ["unit/test_cipher.py::test_keys_change_one_after_the_other"],
    "| parameters of jobs, payloads": [
        _ENCRYPTED + "test_a_task_runs_and_the_server_never_saw_what_it_was_about",
        _ENCRYPTED + "test_items_of_a_bare_queue_are_encrypted_over_moves_requeueing_and_replay",
        _ENCRYPTED + "test_stations_fork_fan_out_and_keep_their_payloads",
    ],
    "| results, also those that a flow": [
        _ENCRYPTED + "test_flows_bring_results_that_only_their_steps_read",
        _ATTACKED + "test_results_are_those_of_the_task_that_was_asked_for",
    ],
    "| defaults of parameters of periodic": [
        _ATTACKED + "test_a_leader_encrypts_no_parameters_that_nobody_with_the_keys_published",
        _ENCRYPTED + "test_tasks_of_periodic_jobs_are_encrypted_by_the_leader",
    ],
    "An envelope is valid": [
        _ATTACKED + "test_no_field_of_a_task_can_be_edited_so_that_something_else_runs",
        "unit/test_cipher.py::test_ciphertext_does_not_fit_another_task",
        "unit/test_cipher.py::test_a_payload_does_not_open_with_other_headers_or_below_another_prefix",
    ],
    "A payload that was changed, moved, multiplied": [
        _ATTACKED + "test_the_attack_that_worked_before_a_third_word_in_encoding",
        _ATTACKED + "test_no_mixture_of_the_fields_of_several_tasks_runs_as_what_nobody_enqueued",
        _ATTACKED + "test_who_puts_the_last_state_of_a_replaced_task_under_new_ids_runs_nothing",
        _ATTACKED + "test_items_do_not_open_in_another_queue_of_their_pipeline",
        _ATTACKED + "test_a_job_does_not_run_as_the_item_of_a_station_nor_an_item_as_a_job",
        _ATTACKED + "test_another_key_and_none_are_no_way_round",
        _ATTACKED + "test_signed_text_cannot_take_the_place_of_ciphertext_nor_the_other_way_round",
        _ATTACKED + "test_every_byte_counts_of_what_runs",
    ],
    "A step of a flow runs only with": [
        _ATTACKED + "test_a_step_is_given_the_results_of_the_steps_before_it_or_it_does_not_run",
        _ATTACKED + "test_a_step_does_not_run_before_those_before_it_also_when_it_never_looks_at_their_results",
        _ATTACKED + "test_flows_of_every_shape_run_encrypted",
    ],
    "A task that cannot": [
        _ENCRYPTED + "test_a_worker_without_the_key_makes_the_task_dead_and_it_runs_once_the_key_is_there"
    ],
    "| `EncryptionKeyMissing` |": [
        _ENCRYPTED + "test_a_worker_without_the_key_makes_the_task_dead_and_it_runs_once_the_key_is_there"
    ],
    "| `DecryptionFailed` |": [_ATTACKED + "test_items_do_not_open_in_another_queue_of_their_pipeline"],
    "| `NotEncrypted` |": [_ATTACKED + "test_require_encryption_is_what_refuses_the_plain"],
    "`task.result()`, `lease.payload`": [
        _ENCRYPTED + "test_a_lease_whose_key_lacks_says_so_and_can_be_given_back",
        _ENCRYPTED + "test_what_was_popped_without_its_key_is_not_lost",
        _ATTACKED + "test_replays_and_corrected_payloads_are_made_only_of_payloads_that_open",
    ],
    "Pages and commands show `(encrypted)`": [
        _ENCRYPTED + "test_pages_and_commands_show_that_it_is_encrypted_and_with_keys_what_it_is"
    ],
    "The server moves dead": [
        _ATTACKED + "test_the_dead_of_a_queue_open_where_this_program_says_they_go_and_not_where_the_server_says"
    ],
    "Payloads in the first": [_ATTACKED + "test_what_the_first_format_encrypted_is_dead_and_says_what_to_do"],
}

NOTHING_TO_ATTACK: tuple[str, ...] = (
    "This page describes what",
    "To report a vulnerability",
    "Every client that can write",
    "The server is the trust boundary.",
    "Use `rediss://`",
    "See roles.",
    "Secrets.",
    "Users who open a",
    "The rest of an",
    "Spark archives and reports",
    "Limits.",
    "For the prefix `jobrunner`",
    "A producer may write all keys",
    "To separate them, give",
    "The lines apply as they are",
    "A URL with another database",
    "Operators and viewers can",
    "`~jobrunner:{mail}:*` instead of `~jobrunner:{[^/]*}:*`.",
    "`jobrunner doctor` also checks",
    '`durability="fsync"` needs',
    "A password goes into the URL",
    "`redis://producer:password@host:6379`",
    "Give all applications and",
    "| id, queue, type, times",
    "| the partition of",
    "| headers, errors and tracebacks",
    "Searching by parameter finds nothing in what is encrypted",
    "Stations on Spark and writing from Spark",
    "A client that can",
    "A step after an",
    "The reasons for this",
)

_LINKS = "unit/web/test_login_links.py::"
_SESSIONS = "unit/web/test_sessions.py::"
_EDGES = "unit/web/test_edges.py::"
_LOGIN = "acceptance/test_dashboard_login.py::"
_CONNECTIONS = "acceptance/test_dashboard_connections.py::"
_GUESSES = "unit/web/test_login_throttle.py::"
_AUTH = "unit/web/test_auth.py::"
_SETTINGS = "unit/web/test_settings.py::"

DASHBOARD_TESTS: dict[str, list[str]] = {
    "Without an option the": [_LOGIN + "test_a_proxy_with_default_settings_lets_nobody_in"],
    "The link logs in": [_LINKS + "test_a_link_lets_in_one_browser_as_an_admin"],
    "There is no other": [
        _LINKS + "test_being_on_this_machine_is_no_login",
        _LINKS + "test_a_link_of_one_process_is_of_no_use_at_another",
        _LOGIN + "test_a_proxy_with_default_settings_lets_nobody_in",
    ],
    "`--open` opens the link": [_LOGIN + "test_open_leads_the_browser_by_a_private_page"],
    "`jobrunner dashboard --link` prints another": [
        _LOGIN + "test_a_second_command_prints_another_link",
        _LOGIN + "test_what_is_left_for_the_owner_is_private_and_goes_with_the_process",
        _LOGIN + "test_a_folder_that_is_not_the_owners_alone_gets_no_secret",
        _LINKS + "test_only_the_owner_gets_more_links",
    ],
    "The link goes to stdout": [
        _LOGIN + "test_a_link_is_neither_in_logs_nor_in_ps",
        _LINKS + "test_a_token_never_goes_on_to_other_pages",
    ],
    "`--no-login` admits every user": [
        _LOGIN + "test_no_login_is_said_and_is_for_this_machine_only",
        _AUTH + "test_without_auth_nobody_else_is_let_in",
    ],
    "Another `--host` is refused": [_SETTINGS + "test_an_address_that_others_reach_needs_a_login_of_its_own"],
    "| one token |": [_AUTH + "test_a_person_types_the_token_once_and_goes_on_to_where_they_wanted"],
    "| named tokens |": [_SESSIONS + "test_names_are_in_the_audit_log"],
    "| users |": [_AUTH + "test_users_have_passwords"],
    "| a proxy |": [_AUTH + "test_only_a_trusted_proxy_says_who_asks"],
    "`jobrunner dashboard --hash` reads": [
        _LOGIN + "test_a_hash_is_printed_that_lets_in",
        _SESSIONS + "test_passwords_and_tokens_may_be_configured_as_hashes",
        _SESSIONS + "test_a_hash_that_cannot_be_checked_is_refused_and_not_shown",
    ],
    "Sessions of the login page are kept": [
        _SESSIONS + "test_several_dashboards_share_sessions_and_their_ends",
        _SESSIONS + "test_one_session_is_ended_and_the_others_go_on",
        _SESSIONS + "test_a_person_ends_own_sessions_and_an_admin_those_of_everybody",
        _SESSIONS + "test_sessions_are_bounded_and_expire",
        _SESSIONS + "test_another_set_of_tokens_ends_all_sessions",
    ],
    "A copied cookie is of no use then": [
        _SESSIONS + "test_after_logging_out_a_copy_of_the_cookie_is_of_no_use",
        _SESSIONS + "test_live_updates_end_with_the_session",
    ],
    "The server holds only digests": [
        _SESSIONS + "test_what_the_server_has_is_of_no_use_for_coming_in",
        _SESSIONS + "test_who_writes_to_the_server_makes_no_session",
    ],
    "Sessions of login links end with": [_LINKS + "test_a_link_of_one_process_is_of_no_use_at_another"],
    "Cookies are named": [
        _EDGES + "test_cookies_over_https_are_of_this_host_alone",
        _LINKS + "test_below_a_path_links_cookies_and_the_way_on_have_the_path",
    ],
    "Wrong passwords and tokens are limited": [
        _GUESSES + "test_many_names_from_one_address_are_limited_together",
        _EDGES + "test_all_loopback_addresses_are_one_site",
        _LINKS + "test_guesses_of_links_are_limited",
    ],
    "Then the answer is 429": [_GUESSES + "test_after_too_many_wrong_secrets_the_right_one_has_to_wait_too"],
    "Counts are kept on the server": [
        _GUESSES + "test_after_too_many_wrong_secrets_the_right_one_has_to_wait_too",
        _EDGES + "test_all_loopback_addresses_are_one_site",
    ],
    "An attacker cannot lock": [_GUESSES + "test_who_is_logged_in_by_token_stays_so"],
    "Behind one router both": [_GUESSES + "test_who_is_logged_in_by_token_stays_so"],
    "Behind a proxy all": [_GUESSES + "test_an_address_that_a_proxy_names_counts_only_if_the_proxy_is_trusted"],
    "The audit log names the same": [_GUESSES + "test_the_address_is_the_last_one_that_can_be_believed"],
    "| viewer |": ["unit/web/test_actions.py::test_no_action_is_there_for_a_viewer"],
    "| operator |": ["unit/web/test_actions.py::test_each_role_may_do_what_its_role_says"],
    "| admin |": ["unit/web/test_actions.py::test_each_role_may_do_what_its_role_says"],
    "Where many tasks are changed it has the filter": [
        "unit/web/test_actions.py::test_what_is_done_to_many_is_noted_with_its_filter_and_its_number",
        "unit/web/test_actions.py::test_selected_tasks_are_named_in_the_audit_log",
    ],
    "The audit log (`/audit`) has every": [
        "unit/web/test_actions.py::test_who_did_what_is_noted_also_what_was_refused",
        _SESSIONS + "test_names_are_in_the_audit_log",
        _ROLES + "test_commands_note_who_did_what_with_the_operators_user",
    ],
    "The same entries are JSON lines": [_LOGIN + "test_logins_refusals_and_actions_are_json_lines_on_stderr"],
    "Of failed logins and refusals": [
        _EDGES + "test_refusals_and_failed_logins_cannot_flood_the_audit_log",
        _EDGES + "test_strangers_from_everywhere_do_not_push_out_what_people_did",
    ],
    "A user who needs": [_EDGES + "test_refusals_and_failed_logins_cannot_flood_the_audit_log"],
    "The log on the server keeps": [_ROLES + "test_who_works_or_enqueues_can_neither_read_nor_erase_audit_and_logins"],
    "A request has ten seconds": [
        _CONNECTIONS + "test_a_head_that_trickles_in_is_given_up",
        _CONNECTIONS + "test_a_form_that_trickles_in_is_given_up",
    ],
    "There are at most 1 000 connections": [
        _CONNECTIONS + "test_health_and_pages_answer_while_strangers_hold_connections"
    ],
    "When there are more, the one that": [
        _CONNECTIONS + "test_one_site_cannot_take_the_room_of_others",
        _CONNECTIONS + "test_health_and_pages_answer_while_strangers_hold_connections",
    ],
    "A head is at most": [
        _CONNECTIONS + "test_a_large_head_is_refused",
        _EDGES + "test_many_headers_are_refused_with_the_headers",
    ],
    "A person has at most 50 tabs": [_SESSIONS + "test_one_viewer_cannot_take_all_streams"],
}
"""The same for docs/dashboard.md, section "Authentication and roles"."""

DASHBOARD_NOTHING: tuple[str, ...] = (
    "Passwords and tokens may",
    "Users with passwords (`--basic`)",
    "Passwords and tokens are",
    "Three roles, each with",
    "`--read-only` has no actions",
    "Beyond a trusted network",
    "Options may also be set in",
)
